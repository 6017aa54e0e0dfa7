"""Tokens are judged by the cluster's keys alone, as they are in the file now."""

import base64
import hmac
import json
import time
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from roll_operator.trust.identity import (
    BadToken,
    NoKeys,
    PodIdentity,
    audience,
    operator_audience,
)
from roll_operator.trust.tokens import Verifier
from support.minted import JOB_UID, OPERATOR, Issuer, write_keys

ISSUER, OTHER = Issuer(), Issuer()
OPERATORS = operator_audience(JOB_UID)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    write_keys(tmp_path / "jwks.json", ISSUER)
    return tmp_path / "jwks.json"


def forged(algorithm: str, secret: bytes = b"") -> str:
    """Made without the private key: unsigned, or signed with the public key as if it were a secret."""

    def part(content: bytes) -> str:
        return base64.urlsafe_b64encode(content).rstrip(b"=").decode()

    header = {"alg": algorithm, "kid": "first"}
    claims = {"aud": audience(JOB_UID), "exp": time.time() + 60}
    body = ".".join(part(json.dumps(content).encode()) for content in (header, claims))
    signature = hmac.digest(secret, body.encode(), "sha256") if secret else b""
    return f"{body}.{part(signature)}"


PUBLIC_PEM = ISSUER.key.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)


def test_a_pods_token_tells_which_pod_it_is(keys: Path) -> None:
    verifier = Verifier(keys, JOB_UID, OPERATOR)
    assert verifier.pod(ISSUER.pod("uid-1", "sums-reward-0")) == PodIdentity(
        "uid-1", "sums-reward-0"
    )


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        ("", "no token"),
        ("gibberish", "can't be trusted"),
        (ISSUER.pod("uid-1", seconds=-60), "has expired"),
        (ISSUER.pod("uid-1", job="another"), f"for roll.dev/another, not for {audience(JOB_UID)}"),
        (ISSUER.operator(), f"for {OPERATORS}, not for"),
        (OTHER.pod("uid-1"), "Signature verification failed"),
        (Issuer("unheard").pod("uid-1"), "the key unheard, unknown"),
        (ISSUER.sign(aud=[audience(JOB_UID)]), "bound to no pod"),
        (ISSUER.sign(aud=[audience(JOB_UID)], nbf=time.time() + 86_400), "not yet valid"),
        (ISSUER.sign(exp=None, aud=[audience(JOB_UID)]), "can't be trusted"),
        (forged("none"), "can't be trusted"),
        (forged("HS256", PUBLIC_PEM), "can't be trusted"),
    ],
)
def test_a_token_that_does_not_count_has_a_reason(keys: Path, token: str, reason: str) -> None:
    with pytest.raises(BadToken, match=reason) as refused:
        Verifier(keys, JOB_UID, OPERATOR).pod(token)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (ISSUER.operator("system:serviceaccount:lab:sums"), "not of the operator"),
        (ISSUER.operator(job="another"), f"for roll.dev/operator/another, not for {OPERATORS}"),
        (ISSUER.sign(aud=["roll.dev/operator"], sub=OPERATOR), f"not for {OPERATORS}"),
        (ISSUER.sign(aud=[audience(JOB_UID)], sub=OPERATOR), f"not for {OPERATORS}"),
        (ISSUER.sign(sub=OPERATOR), "can't be trusted: .*aud"),
        (ISSUER.operator(seconds=-60), "has expired"),
        (ISSUER.pod("uid-1"), f"not for {OPERATORS}"),
        (OTHER.operator(), "Signature verification failed"),
    ],
)
def test_only_the_operator_is_the_operator(keys: Path, token: str, reason: str) -> None:
    verifier = Verifier(keys, JOB_UID, OPERATOR)
    verifier.operator(ISSUER.operator())
    with pytest.raises(BadToken, match=reason):
        verifier.operator(token)


def test_without_a_name_for_the_operator_nobody_is(keys: Path) -> None:
    with pytest.raises(BadToken):
        Verifier(keys, JOB_UID, "").operator(ISSUER.sign(aud=[OPERATORS], sub=""))


def test_keys_that_change_on_disk_count_at_once(keys: Path) -> None:
    verifier, second = Verifier(keys, JOB_UID, OPERATOR), Issuer("second")
    verifier.pod(ISSUER.pod("uid-1"))
    write_keys(keys, ISSUER, second)
    verifier.pod(second.pod("uid-1"))
    verifier.pod(ISSUER.pod("uid-1"))
    write_keys(keys, second)
    with pytest.raises(BadToken):
        verifier.pod(ISSUER.pod("uid-1"))


def test_without_keys_nobodys_token_is_judged(keys: Path) -> None:
    keys.write_text("{")
    verifier = Verifier(keys, JOB_UID, OPERATOR)
    with pytest.raises(NoKeys):
        verifier.pod(ISSUER.pod("uid-1"))
    write_keys(keys, ISSUER)
    verifier.pod(ISSUER.pod("uid-1"))
    keys.write_text("{")
    verifier.pod(ISSUER.pod("uid-1"))


def test_a_cluster_may_sign_with_an_elliptic_curve(keys: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    public = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    keys.write_text(json.dumps({"keys": [public | {"kid": "curve"}]}))
    claims = {"aud": audience(JOB_UID), "exp": time.time() + 60}
    bound = {"kubernetes.io": {"pod": {"uid": "uid-1", "name": "sums-reward-0"}}}
    token = jwt.encode(claims | bound, key, algorithm="ES256", headers={"kid": "curve"})
    assert Verifier(keys, JOB_UID, OPERATOR).pod(token).uid == "uid-1"
