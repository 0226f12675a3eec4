@0xb0f5d2a2c1e64b37;
# The values of the legacy layout, as its own programs write them.

struct StoredItem {
  contents @0 :Data;
  visibilityTsIndexKey @1 :Data;
  id @2 :Data;
}

struct LeaseEntry {
  keys @0 :List(Data);
  expiryTsSecs @1 :UInt64;
}
