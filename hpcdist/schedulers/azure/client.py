"""The door to Azure's SDK: a client of one workspace, and its errors in plain words.

azure-ai-ml takes seconds to import and much longer to install, so it is an extra, and imported
where a workspace is asked for. Its telemetry is off: all traffic goes to the user's own Azure. The
login is what azure-identity finds (`az login`, a managed identity, variables of the environment).
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import warnings
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from hpcdist.base.errors import EXIT_USER, HpcdistError, ProfileError, SchedulerError
from hpcdist.base.secrets import Stars
from hpcdist.base.text import nearest_first, one_line
from hpcdist.cluster.profile import AzureOptions

if TYPE_CHECKING:
    from azure.ai.ml import MLClient

INSTALL = "pip install 'hpcdist[azure]'"
_TRIED = "'azure-ai-ml==1.35.*'"
"""The version that the tests are run with."""
_LOGIN = (
    "log in with: az login (or another way that azure-identity supports, such as AZURE_CLIENT_ID)"
)
_SEE = "the studio lists what the workspace has: https://ml.azure.com"
_ROLE = "you need the role AzureML Data Scientist in the workspace: ask its owner"
_STORAGE_ROLE = (
    "you need the role Storage Blob Data Contributor on the workspace's storage, and its firewall "
    "must let this machine in: ask its owner"
)
_CONNECT_TIMEOUT_S = 20
_READ_TIMEOUT_S = 60
_RETRIES_LAST_S = 90
"""Time that a request may take with its repetitions, after which the SDK waits for none."""
_MOST_WORDS = 400
_OF_STORAGE = (
    "AuthorizationFailure",
    "AuthorizationPermissionMismatch",
    "KeyBasedAuthenticationNotPermitted",
)
"""Codes of the storage, which has a firewall and roles of its own."""
_REPEATED = re.compile(r"\s*\b(?:Code|Content|Target|Exception Details):.*", re.DOTALL)


class NoSdkError(SchedulerError):
    """Azure cannot be asked from this Python; states of its runs are not known."""

    exit_code = EXIT_USER


class SilentAzureError(SchedulerError):
    """Azure did not answer: what was asked for may have been done."""


class NotFoundError(SchedulerError):
    """Azure has no such thing."""


class ConflictError(SchedulerError):
    """Azure has something else of that name, or in another state."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep to itself what the SDK says of its own parts, on stderr, as warnings and in its log; not
    within threads."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # its loggers have levels and handlers of their own
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@cache
def client_of(azure: AzureOptions) -> MLClient:
    """Return the SDK's client of a profile's workspace; nothing is sent yet.

    Raises NoSdkError where the SDK is not installed.
    """
    try:
        with quiet():
            from azure.ai.ml import MLClient
            from azure.identity import DefaultAzureCredential
    except ImportError as error:
        raise NoSdkError(f"Azure's SDK cannot be imported: {error}", hint=INSTALL) from None
    with asking("its settings"), quiet():
        return MLClient(
            DefaultAzureCredential(),
            azure.subscription,
            azure.resource_group,
            azure.workspace,
            enable_telemetry=False,
            # Without its bar, which `quiet` keeps from being seen, an upload that fails is waited
            # for without end.
            show_progress=True,
            connection_timeout=_CONNECT_TIMEOUT_S,
            read_timeout=_READ_TIMEOUT_S,
            retry_total=3,
            retry_backoff_factor=0.4,
            timeout=_RETRIES_LAST_S,
        )


@contextlib.contextmanager
def asking(
    what: str, *, wrong: type[HpcdistError] = NotFoundError, hint: str = _SEE
) -> Iterator[None]:
    """Turn the SDK's errors into the package's; `what` is what Azure is asked for.

    `wrong` is the error where Azure has no such thing, `hint` what to do then.
    """
    from azure.ai.ml.exceptions import MlException
    from azure.core import exceptions

    try:
        yield
    except ImportError as error:  # not all that is used has a documented name
        raise NoSdkError(
            f"Azure's SDK of this version lacks something: {error}", hint=f"pip install {_TRIED}"
        ) from None
    except MlException as error:  # before anything is sent
        raise SchedulerError(
            f"Azure's SDK does not take {what}: {_said(error)}",
            hint="check the section azure of the cluster profile",
        ) from None
    except exceptions.ClientAuthenticationError as error:
        raise SchedulerError(f"Azure refused the login: {_said(error)}", hint=_LOGIN) from None
    except exceptions.ResourceNotFoundError as error:
        raise wrong(f"Azure cannot find {what}: {_said(error)}", hint=hint) from None
    except exceptions.HttpResponseError as error:
        raise _refused(error, what) from None
    except exceptions.ServiceRequestError as error:
        raise SilentAzureError(
            f"Azure cannot be reached: {_said(error)}",
            hint="check the network, and its proxy",
        ) from None
    except exceptions.AzureError as error:  # ServiceResponseError: it was cut off half way
        raise SilentAzureError(
            f"Azure did not answer when asked for {what}: {_said(error)}", hint="try again"
        ) from None


def _refused(error: Any, what: str) -> SchedulerError:
    """Return the error for an answer that is neither a success nor about a login."""
    status, said = error.status_code or 0, _said(error)
    if status == 409:
        return ConflictError(f"Azure refused {what}: {said}", hint="see it in the studio")
    if status == 429:
        hint = "wait a few minutes: the workspace has had too many requests"
        return SchedulerError(f"Azure puts off {what}: {said}", hint=hint)
    if status >= 500 or status == 408:
        return SilentAzureError(f"Azure failed at {what} ({status}): {said}", hint="try again")
    if "quota" in said.lower():
        hint = "ask for fewer nodes, or for more quota in the portal: Quotas of the subscription"
        return SchedulerError(
            f"Azure refused {what}, because the quota is used up: {said}", hint=hint
        )
    if status == 403:
        is_storage = getattr(error, "error_code", None) in _OF_STORAGE
        who = "Azure's storage" if is_storage else "Azure"
        hint = _STORAGE_ROLE if is_storage else _ROLE
        return SchedulerError(f"{who} forbids {what}: {said}", hint=hint)
    return SchedulerError(f"Azure refused {what} ({status}): {said}", hint="nothing was changed")


def _said(error: Any) -> str:
    """Return the words of an error in one line, without secrets; its JSON has them at several
    places."""
    inner = getattr(error, "error", None)
    text = str(getattr(inner, "message", None) or getattr(error, "message", None) or error)
    code = getattr(inner, "code", None)
    text = _REPEATED.sub("", Stars().text(text))
    words = one_line(" ".join(text.split()))[:_MOST_WORDS] or type(error).__name__
    return f"{words} ({code})" if code and code not in words else words


def unknown_name(kind: str, name: str, known: list[str]) -> ProfileError:
    """Return the error for the compute, environment or datastore of a profile that the workspace
    does not have."""
    listed = ", ".join(nearest_first(name, known)) or "none"
    return ProfileError(
        f"azure.{kind} is {name}, and the workspace has no {kind} of that name",
        hint=f"it has {listed}",
    )


@contextlib.contextmanager
def without_git() -> Iterator[None]:
    """Have the SDK send nothing of the git repository that the user is in: its URL may hold a
    password."""
    before = os.environ.get("GIT_DIR")
    os.environ["GIT_DIR"] = os.devnull
    try:
        yield
    finally:
        del os.environ["GIT_DIR"]
        if before is not None:
            os.environ["GIT_DIR"] = before
