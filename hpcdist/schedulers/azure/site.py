"""The workspace: the SDK's client of it, its errors in plain words, and what it has of what a
profile names.

azure-ai-ml takes seconds to import and much longer to install, so it is an extra, and imported
where a workspace is asked for. Its telemetry is off: all traffic goes to the user's own Azure. The
login is what azure-identity finds (`az login`, a managed identity, variables of the environment).
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from hpcdist.base.errors import EXIT_USER, HpcdistError, JobError, ProfileError, SchedulerError
from hpcdist.base.secrets import Stars
from hpcdist.base.text import nearest_first, number_of, one_line
from hpcdist.cluster.profile import AzureOptions

if TYPE_CHECKING:
    from azure.ai.ml import MLClient

_INSTALL = "pip install 'hpcdist[azure]'"
_TRIED = "pip install 'azure-ai-ml==1.35.*'"
"""The version that the tests are run with."""
_SEE = "the studio lists what the workspace has: https://ml.azure.com"
_LOGIN = (
    "log in with: az login (or another way that azure-identity supports, such as AZURE_CLIENT_ID)"
)
_ROLE = "you need the role AzureML Data Scientist in the workspace: ask its owner"
_STORAGE_ROLE = (
    "you need the role Storage Blob Data Contributor on the workspace's storage, and its firewall "
    "must let this machine in: ask its owner"
)
_REPEATED = re.compile(r"\s*\b(?:Code|Content|Target|Exception Details):.*", re.DOTALL)
_READ_TIMEOUT_S = 60
_LISTS = {"compute": "compute", "environment": "environments", "datastore": "datastores"}
"""A key of the section azure -> the client's attribute that lists what it can be."""


class NoSdkError(SchedulerError):
    """Azure cannot be asked from this Python; states of its runs are not known."""

    exit_code = EXIT_USER


class SilentAzureError(SchedulerError):
    """Azure did not answer: what was asked for may have been done."""


class NotFoundError(SchedulerError):
    """Azure has no such thing."""


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
        raise NoSdkError(f"Azure's SDK cannot be imported: {error}", hint=_INSTALL) from None
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
            connection_timeout=20,
            read_timeout=_READ_TIMEOUT_S,
            retry_total=3,
            retry_backoff_factor=0.4,
            timeout=90,  # of a request with its repetitions
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
        raise NoSdkError(f"Azure's SDK lacks what is used: {error}", hint=_TRIED) from None
    except MlException as error:  # before anything is sent
        why = f"Azure's SDK does not take {what}: {_said(error)}"
        raise SchedulerError(why, hint="check the section azure of the cluster profile") from None
    except exceptions.ClientAuthenticationError as error:
        raise SchedulerError(f"Azure refused the login: {_said(error)}", hint=_LOGIN) from None
    except exceptions.ResourceNotFoundError as error:
        raise wrong(f"Azure cannot find {what}: {_said(error)}", hint=hint) from None
    except exceptions.HttpResponseError as error:
        raise _refusal(error, what) from None
    except exceptions.AzureError as error:  # it was not reached, or cut off half way
        why = f"Azure cannot be reached for {what}: {_said(error)}"
        raise SilentAzureError(why, hint="check the network and its proxy, and try again") from None


def _refusal(error: Any, what: str) -> SchedulerError:
    """Return the error for an answer that is neither a success nor about a login."""
    status, said = error.status_code or 0, _said(error)
    if status >= 500 or status == 408:
        return SilentAzureError(f"Azure failed at {what} ({status}): {said}", hint="try again")
    why, hint = f"Azure refused {what} ({status})", "nothing was changed"
    if status == 429:
        hint = "wait a few minutes: the workspace has had too many requests"
    elif "quota" in said.lower():
        why = f"Azure refused {what}, because the quota is used up"
        hint = "ask for fewer nodes, or for more quota in the portal: Quotas of the subscription"
    elif status == 403 and getattr(error, "error_code", None):  # the storage has roles of its own
        why, hint = f"Azure's storage forbids {what}", _STORAGE_ROLE
    elif status == 403:
        why, hint = f"Azure forbids {what}", _ROLE
    return SchedulerError(f"{why}: {said}", hint=hint)


def _said(error: Any) -> str:
    """Return the words of an error in one line, without secrets; its JSON has them at several
    places."""
    inner = getattr(error, "error", None)
    text = str(getattr(inner, "message", None) or getattr(error, "message", None) or error)
    code = getattr(inner, "code", None)
    text = _REPEATED.sub("", Stars().text(text))
    words = one_line(" ".join(text.split()))[:400] or type(error).__name__
    return f"{words} ({code})" if code and code not in words else words


# What a profile names.


def find(azure: AzureOptions, key: str, **which: str | None) -> Any:
    """Return the compute, environment or datastore of a profile, of an environment in the version
    or with the label of `which`; ProfileError where the workspace has none of its name."""
    value = str(getattr(azure, key))
    name = re.split(r"[:@]", value.removeprefix("azureml:"), maxsplit=1)[0]
    listing = getattr(client_of(azure), _LISTS[key])
    try:
        with asking(f"{key} {value}"):
            return listing.get(name, **which)
    except NotFoundError:
        where = "check azure.subscription, azure.resource_group and azure.workspace of the profile"
        with asking(f"workspace {azure.workspace}", wrong=ProfileError, hint=where):
            known = [one.name for one in listing.list()]
    listed = ", ".join(nearest_first(name, known)) or "none"
    remark = f"; {name}@latest is its last version" * (name in known)
    lacks = "no such version of it" if name in known else f"no {key} of that name"
    what = f"azure.{key} is {value}, and the workspace has {lacks}"
    raise ProfileError(what, hint=f"it has {listed}{remark}")


def check_compute(azure: AzureOptions, num_nodes: int) -> Any:
    """Return the compute. Raises ProfileError where the workspace has no such, and JobError where
    it never has so many nodes: the job would wait for ever."""
    compute = find(azure, "compute")
    most = getattr(compute, "max_instances", None) or 1
    if num_nodes > most:
        raise JobError(
            f"resources.nodes is {num_nodes}, but the compute {azure.compute} has "
            f"{number_of(most, 'node')} at most",
            hint="ask for fewer with --nodes, or enlarge it: az ml compute update --max-instances",
        )
    return compute


def check_environment(azure: AzureOptions) -> bool:
    """Return whether the environment was found: an image, or a registry's, is not asked for.
    Raises ProfileError where the workspace has none such."""
    environment = azure.environment
    if environment is None or environment.startswith("azureml://"):
        return False
    version = re.split(r"[:@]", environment.removeprefix("azureml:"), maxsplit=1)[1]
    find(azure, "environment", **{"label" if "@" in environment else "version": version})
    return True
