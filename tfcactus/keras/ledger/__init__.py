"""Privacy ledgers: noisy updates are counted before they are released."""
