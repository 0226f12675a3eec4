"""The machinery that breaks stores on purpose and judges what they did.

It must not be imported by the package: `holdfast.testing` holds what users import, and this is not in the wheel.
Start in `history/check.py`, the judge of every other folder; then `simulation/`, `kills/` or `disk/`.
"""
