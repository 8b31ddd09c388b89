"""The door to AWS: clients of boto3, AWS errors in one line, and waiting for AWS."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from istbench.base.errors import RunFailed, UserError, printable

_EXPIRED = {
    "ExpiredToken", "ExpiredTokenException", "RequestExpired", "InvalidClientTokenId", "AuthFailure",
    "UnrecognizedClientException", "InvalidAccessKeyId",
}  # fmt: skip
_DENIED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"}
_SIGN_IN = "sign in, for example with `aws sso login`"
_LONGEST = 400
_T = TypeVar("_T")


@dataclass(frozen=True)
class Aws:
    """AWS in one region."""

    region: str

    def client(self, service: str) -> Any:
        """The client of `service`, created once."""
        return _client(service, self.region)


def require_boto3() -> Any:
    """Import boto3.

    Raises:
        UserError: if it is not installed.
    """
    try:
        import boto3
    except ImportError:
        raise UserError(
            "the AWS commands need boto3, which is not installed: pip install 'istbench[aws]'"
        ) from None
    return boto3


def default_region() -> str | None:
    """The region of the user's environment or profile; None if neither has one."""
    # Other tools of AWS read AWS_REGION, boto3 only AWS_DEFAULT_REGION.
    region: str | None = os.environ.get("AWS_REGION") or require_boto3().Session().region_name
    return region


def connect(region: str | None, fallback: str | None = None) -> Aws:
    """AWS in `region`, else in the user's default region, else in `fallback`.

    Raises:
        UserError: if boto3 is missing, or no region is known.
    """
    with calls("to look up the region"):
        found = region or default_region() or fallback
    if not found:
        raise UserError("no region: give --region, `region` in the spec, or set AWS_REGION")
    return Aws(found)


@cache
def _client(service: str, region: str) -> Any:
    from botocore.config import Config

    # The client repeats throttled calls, more slowly each time.
    config = Config(retries={"mode": "standard", "max_attempts": 8}, connect_timeout=15, read_timeout=60)
    return require_boto3().Session(region_name=region).client(service, config=config)


@contextlib.contextmanager
def calls(doing: str) -> Iterator[None]:
    """Turn errors of boto3 inside into one line; `doing` completes the sentence "AWS was asked ...".

    Raises:
        UserError: without credentials, or with an unknown profile or region.
        RunFailed: if AWS refuses, or does not answer.
    """
    require_boto3()
    from botocore import exceptions as core
    from botocore.parsers import ResponseParserError

    try:
        yield
    except core.ClientError as error:
        raise RunFailed(_refusal(error, doing)) from None
    except (core.NoCredentialsError, core.PartialCredentialsError):
        raise UserError(f"no AWS credentials: {_SIGN_IN}, or set AWS_PROFILE") from None
    except (core.ProfileNotFound, core.NoRegionError, core.InvalidRegionError) as error:
        raise UserError(
            f"AWS: {_short(error)}; set AWS_PROFILE and AWS_REGION to an existing profile and region"
        ) from None
    except (core.SSOError, core.TokenRetrievalError, core.CredentialRetrievalError) as error:
        raise RunFailed(f"AWS credentials have expired ({_short(error)}): {_SIGN_IN}") from None
    except (core.HTTPClientError, core.ConnectionError) as error:
        raise RunFailed(
            f"AWS was asked {doing}, and does not answer ({_short(error)}): check the connection and the region"
        ) from None
    except ResponseParserError as error:  # for example from a proxy, or from a network with a sign-in page
        raise RunFailed(
            f"AWS was asked {doing}, but something else answered ({_short(error)}): check the connection"
        ) from None
    except core.BotoCoreError as error:
        raise RunFailed(f"AWS was asked {doing}: {_short(error)}; run the same command again") from None


def error_code(error: Any) -> str:
    """The code of an AWS error, such as `ValidationError`."""
    return str(error.response.get("Error", {}).get("Code", ""))


def _refusal(error: Any, doing: str) -> str:
    code, said = error_code(error), _short(error.response.get("Error", {}).get("Message", ""))
    if code in _EXPIRED:
        return f"AWS credentials have expired or are wrong ({code}): {_SIGN_IN}"
    if code in _DENIED:
        return f"AWS was asked {doing}: you have no permission ({said}); docs/aws.md lists the permissions"
    return f"AWS was asked {doing}, and refused: {said or code} ({code})"


def pause(seconds: float) -> None:
    """Sleep."""
    time.sleep(seconds)


def wait_for(ready: Callable[[], _T | None], every_s: float, limit_s: float, what: str) -> _T:
    """Call `ready` every `every_s` seconds; return its first answer that is not None.

    Raises:
        RunFailed: after about `limit_s` seconds; the message begins with `what`.
    """
    until = time.monotonic() + limit_s
    for _ in range(max(1, round(limit_s / every_s))):
        answer = ready()
        if answer is not None:
            return answer
        if time.monotonic() >= until:  # `ready` may take longer than the pauses
            break
        pause(every_s)
    raise RunFailed(f"{what} within {limit_s / 60:.0f} minutes; run the same command again, or `istbench aws down`")


def _short(error: object) -> str:
    text = printable(" ".join(str(error).split())).rstrip(".")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
