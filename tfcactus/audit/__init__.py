"""Audits of training runs: canary scores or counts in, bounds on epsilon out."""

from tfcactus.audit.components import Check, Observations
from tfcactus.audit.counts import (
    clopper_pearson,
    epsilon_lower_bound,
    Errors,
    gaussian_noise_upper_bound,
    Interval,
    OneRun,
)
from tfcactus.audit.evidence import Audit, audit_run, audit_scores, Finding
from tfcactus.audit.families import (
    Claim,
    gaussian_curve,
    gaussian_epsilon,
    gaussian_mu,
)

__all__ = [
    'Audit', 'Check', 'Claim', 'Errors', 'Finding', 'Interval', 'Observations',
    'OneRun', 'audit_run', 'audit_scores', 'clopper_pearson', 'epsilon_lower_bound',
    'gaussian_curve', 'gaussian_epsilon', 'gaussian_mu', 'gaussian_noise_upper_bound',
]
