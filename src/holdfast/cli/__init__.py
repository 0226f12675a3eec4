"""The `holdfast` command. Each command imports what it needs when it runs: `holdfast --help` loads no store."""
