"""YAML that ships with cadenza: `config.load` finds it here, also in an installed wheel."""
