"""Where cells run. A backend takes cells, runs them, and yields an outcome for each; `choose` picks one."""
