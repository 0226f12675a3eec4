"""The jobs: plain functions of a Spark session, a lake and what they read; each answers counts that must agree."""
