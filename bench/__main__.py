"""`make bench`: every figure, one line each."""

from bench import handover


def main() -> None:
    pair = handover.measure()
    print("blocking call that need not wait (memory://, per call)")
    print(f"  in the calling thread      {pair.subject_us:8.1f} us")
    print(f"  handed to a loop's thread  {pair.baseline_us:8.1f} us")
    print(f"  ratio                      {pair.speed_ratio:8.1f} times as fast")


if __name__ == "__main__":
    main()
