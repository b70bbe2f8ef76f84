"""The outcome of an attempt, in this order: `ends` (how each rank ended) or `hang`, `failure` (the
verdict), `lives` (what follows for the job)."""
