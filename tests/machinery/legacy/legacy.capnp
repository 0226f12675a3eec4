@0xb0f5d2a2c1e64b37;
# The values of the legacy layout, as its own programs write them: with the fields of a stored item in any order.

struct ItemContentsIdKey {
  contents @0 :Data;
  id @1 :Data;
  visibilityTsIndexKey @2 :Data;
}

struct ItemContentsKeyId {
  contents @0 :Data;
  visibilityTsIndexKey @1 :Data;
  id @2 :Data;
}

struct ItemIdContentsKey {
  id @0 :Data;
  contents @1 :Data;
  visibilityTsIndexKey @2 :Data;
}

struct ItemIdKeyContents {
  id @0 :Data;
  visibilityTsIndexKey @1 :Data;
  contents @2 :Data;
}

struct ItemKeyContentsId {
  visibilityTsIndexKey @0 :Data;
  contents @1 :Data;
  id @2 :Data;
}

struct ItemKeyIdContents {
  visibilityTsIndexKey @0 :Data;
  id @1 :Data;
  contents @2 :Data;
}

struct LeaseEntry {
  keys @0 :List(Data);
  expiryTsSecs @1 :UInt64;
}
