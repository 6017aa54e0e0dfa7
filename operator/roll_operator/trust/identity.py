"""Whom a token is for, what it proves, or why it proves nothing. Plain data: nothing of cryptography is imported for it."""

from __future__ import annotations

from dataclasses import dataclass


def operator_audience(job_uid: str) -> str:
    """Of the operator's token for one job: no other job's scheduler accepts it, and no worker has one."""
    return f"roll.dev/operator/{job_uid}"


def audience(job_uid: str) -> str:
    """Of the tokens of a job's pods: no other job's scheduler accepts them."""
    return f"roll.dev/{job_uid}"


class BadToken(Exception):
    """Why a token does not count, in one line."""


class NoKeys(Exception):
    """The cluster's keys can't be read at the moment: nobody's token can be judged."""


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """The pod that a token was made for, in the cluster's words."""

    uid: str
    name: str
