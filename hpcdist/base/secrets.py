"""Find secrets by the names and the values of settings, star them out of texts, and keep only those
environment variables that results depend on.

Passwords, tokens and keys must reach neither a script, nor spec.json, nor what is shown of a run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import translate
from functools import cache
from typing import Any

HIDDEN = "***"

_KEPT = re.compile(
    r"(?:OMP|MKL|OPENBLAS|KMP|GOMP|CUDA|NCCL|GLOO|TORCH|TORCHELASTIC|PYTORCH|SLURM|LSB|LSF|LS|PBS"
    r"|CONDA|HPCDIST)_\w+|PATH|LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH|PYTHONHASHSEED|VIRTUAL_ENV"
    r"|HOSTNAME|LANG|LC_ALL|TZ|LOADEDMODULES|MODULEPATH"
)
_PERHAPS_SECRET = re.compile(
    r"auth|cookie|credential|jwt|key|pass|(?:^|_)pat$|private|pwd|secret|session|signature|token",
    re.IGNORECASE,
)
"""Names of variables that are not worth the risk of keeping them."""

# Names are judged by their words: apiKey, api_key and --api-key are api_key.

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_NOT_BEFORE = r"(?=_|$)(?!_(?:env|file|folder|ids?|length|name|path|url|var|variable)(?:_|$))"
"""With these behind them, words of secrets are something else: password_file."""
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:"
    r"[a-z]*(?:secrets?|passw(?:or)?ds?|passphrase)|credentials?|passcode|pwd|pw"
    r"|(?:admin|db|email|ftp|mail|mongo|mysql|pg|postgres|redis|root|smtp|sql|user)_pass"
    rf"|dbpass|mypass|userpass){_NOT_BEFORE}"
    r"|(?:^|(?<!bos|cls|eos|pad|sep|unk)(?<!class|image)(?<!mask)_)(?:"  # no token of a text
    r"[a-z]*token|[a-z]*(?:api|access|secret|private)key|jwt|pat|bearer"
    r"|(?:access|account|api|encryption|private|secret|signing|storage|subscription|wandb|comet"
    r"|neptune|openai|anthropic|hf|huggingface|aws|azure)_key"  # no key of a dictionary
    r")(?:_\d+)?$"
)
_LIKELY_NAME = re.compile(
    r"(?:^|_)(?:auth|authorization|cookie|[a-z]*key|license|session|sig|signature|[a-z]*token)"
    + _NOT_BEFORE
)
"""Names whose values are secret only where they look random."""
_HARMLESS = re.compile(
    r"(?:(?:~|\.{0,2}/|\$|`|%).*|<[^>]*>|\[[^]]*\]|true|false|yes|no|on|off|none|null|\d{1,3})?",
    re.IGNORECASE | re.DOTALL,
)
"""Values that are no secret whatever their name: TOKENIZERS_PARALLELISM=false, the path of a file
with a token, and what bash computes when the job runs."""
_RANDOM = re.compile(
    r"(?<![\w+])(?=[A-Za-z+/=]*\d)(?=[\d+/=]*[A-Za-z])[A-Za-z\d+/=]{16,}(?![\w+])"
    r"|\b[\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12}\b"
)

# Values are judged by what services put in front of theirs. All repeats are bounded or lead on to
# one place, so that no text takes long.

_PASSWORD_IN_URL = re.compile(
    r"(?<![A-Za-z\d+.-])(?!(?:git\+)?(?:ssh|sftp|rsync)://[^:/\s@]*@)"  # a user alone
    r"([A-Za-z][A-Za-z\d+.-]{0,30}://)(?!\*\*\*@)([^/\s]{1,2000})@"  # or a token alone
)
_SECRET_VALUE = re.compile(
    r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----(?:[^-]*-----END [A-Z ]{0,30}PRIVATE KEY-----)?"
    r"|(?<![A-Za-z\d])(?:"
    r"gh[pousr]_[A-Za-z\d]{4,}|hf_[A-Za-z\d]{30,}|(?:AKIA|ASIA)[A-Z\d]{16}|AIza[\w-]{35}"
    r"|sk-(?=[A-Za-z]{0,40}\d)[A-Za-z\d]{20,}"
    r"|(?:sk-(?:admin|ant|or|proj|svcacct)|[sr]k_(?:live|test)|github_pat|glpat|xox[abeprs]|xapp"
    r"|ya29|npm|pypi|dckr_pat|gsk|nvapi|r8|lsv2|glsa|hvs|do[opr]_v1|AGE-SECRET-KEY)"
    r"[_.-](?=[A-Za-z_-]{0,40}\d)[\w-]{15,}"
    r"|(?<=hooks\.slack\.com/services/)[\w/]{20,}|(?<=discord\.com/api/webhooks/)[\w/-]{20,}"
    r"|SG\.[\w-]{16,}\.[\w-]{16,}|eyJ[\w-]{5,}\.eyJ[\w-]{5,}\.[\w-]*"
    r"|(?:(?<=Bearer )|(?<=bearer ))(?!tokens?\b)[\w.~+/-]{6,}=*"
    r"|(?:(?<=uthorization: Basic )|(?<=uthorization: [Tt]oken ))[\w+/.-]{4,}=*"
    r"|(?:(?<=Basic )|(?<=basic ))(?=[A-Za-z+/]{0,40}\d)[A-Za-z\d+/]{12,}=*"
    r")"
)
_NAMED = re.compile(
    r"(?<![\w-])"
    r"(?:(?P<name>-{0,2}[A-Za-z_][\w.-]{0,80})"
    r"(?:[\"']?\s?=\s?|\\?[\"']\s?[:,]\s?(?:\\(?=\"))?|:\s?(?!/))"
    r"|(?P<option>--?[A-Za-z][\w.-]{0,80})[\s,]\s?(?!-))"
    r"(?=(?P<value>[\"'][^\"']{0,200}|[^\s\"',;&}\])]{1,200}))"
)
"""A name of a setting, and what leads to its value: `a=b`, `a: b`, `"a": "b"`, `"--a", "b"`,
`--a b`."""
_MARKED = re.compile(r"\0(\"[^\"]*\"?|'[^']*'?|[^\s\"',;&}\])]+)")
_SETTING = re.compile(r"[\w.+~@/-]+=")
_LEAST_WORD = 6
"""Letters of a secret that is looked for in other texts; shorter ones stand in many words."""

_FILE_NAMES = (
    ".boto .databrickscfg .dockercfg .env .env.* .env~ .envrc .git-credentials .htpasswd .my.cnf "
    ".mylogin.cnf .netrc .pgpass .pypirc .s3cfg .vault-token .vault_pass _netrc *.env *.jks *.kdbx "
    "*.key *.keystore *.keytab *.p12 *.pfx *.ppk application_default_credentials.json kaggle.json "
    "client_secret_*.json id_dsa id_ecdsa id_ecdsa_sk id_ed25519 id_ed25519_sk id_rsa id_*.bak "
    "id_*~ krb5cc_* kubeconfig .aws/credentials .docker/config.json .kube/config "
    ".streamlit/secrets.toml huggingface/token .huggingface/token"
)
_SAMPLE = re.compile(r"(?:^|\.)(?:example|sample|template|dist|defaults?)(?:\.|$)")


def looks_secret(name: str, value: str) -> bool:
    """Return True if a variable or an option seems to hold a password, a token or the like, by its
    name or by its value."""
    return _is_named_secret(name, value) or Stars().text(value) != value


def holds_secret(text: str) -> bool:
    """Return True if a part of a text looks like a secret by itself, whatever it is called."""
    return bool(_SECRET_VALUE.search(text) or _PASSWORD_IN_URL.search(text))


def redact(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables worth keeping; those that may hold a secret are left out altogether,
    but for addresses, which lose their passwords."""
    kept = {
        name: _PASSWORD_IN_URL.sub(rf"\1{HIDDEN}@", value)
        for name, value in sorted(environment.items())
        if _KEPT.fullmatch(name) and not _PERHAPS_SECRET.search(name)
    }
    return {name: value for name, value in kept.items() if not looks_secret(name, value)}


def is_secret_file(path: str) -> bool:
    """Return True if a file by this name usually holds passwords or keys."""
    *_, name = parts = path.lower().split("/")[-2:]
    known = _secret_names()
    is_known = known.fullmatch(name) or known.fullmatch("/".join(parts))
    return bool(is_known) and not _SAMPLE.search(name)


@cache  # not when this module is imported, as every command does
def _secret_names() -> re.Pattern[str]:
    names = "|".join(map(translate, _FILE_NAMES.split()))
    return re.compile(names.replace(".*", "[^/]*"))


class Stars:
    """Replaces secrets by stars, and knows afterwards what they were."""

    def __init__(self) -> None:
        self._words: set[str] = set()

    def value(self, value: Any, name: str = "") -> Any:
        """Return a setting with its secrets starred out: a text, or lists and dicts of some."""
        if isinstance(value, str):
            return self._hidden(value) if _is_named_secret(name, value) else self.text(value)
        if isinstance(value, Mapping):
            return {key: self.value(item, str(key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            are_texts = all(isinstance(item, str) for item in value)
            items = self.args(value) if are_texts else [self.value(item, name) for item in value]
            return type(value)(items)
        return value

    def args(self, args: Sequence[str]) -> list[str]:
        """Return the arguments of a program with their secrets starred out: both `--token=x` and
        `--token x`."""
        starred = []
        for before, arg in zip(["", *args], args, strict=False):
            name, _, value = arg.partition("=")
            is_option = before.startswith("-") and "=" not in before
            if _SETTING.match(arg) and _is_named_secret(name, value):
                starred.append(f"{name}={self._hidden(value)}")
            elif is_option and not arg.startswith("-") and _is_named_secret(before, arg):
                starred.append(self._hidden(arg))
            else:
                starred.append(self.text(arg))
        return starred

    def text(self, text: str) -> str:
        """Return a text with the secrets in it starred out, `token=x` and those found so far among
        them."""
        text = _SECRET_VALUE.sub(lambda found: self._hidden(found[0]), text.replace("\0", ""))
        text = _PASSWORD_IN_URL.sub(lambda found: f"{found[1]}{self._hidden(found[2])}@", text)
        text = _NAMED.sub(_mark, text)
        return self.again(_MARKED.sub(lambda found: self._hidden(found[1]), text))

    def again(self, text: str) -> str:
        """Return a text without the secrets found so far, and without what looks like one by its
        value; what only has a secret's name stays, since the text may be of a program."""
        text = _SECRET_VALUE.sub(HIDDEN, _PASSWORD_IN_URL.sub(rf"\1{HIDDEN}@", text))
        words = sorted(map(re.escape, self._words), key=len, reverse=True)
        return re.sub(rf"(?<!\w)(?:{'|'.join(words)})(?!\w)", HIDDEN, text) if words else text

    def _hidden(self, secret: str) -> str:
        """Note a secret, and return stars, in its quotes."""
        word = (secret := secret.replace("\0", "")).strip("\"'")
        if len(word) >= _LEAST_WORD and word != HIDDEN:
            self._words.add(word)
        return secret.replace(word, HIDDEN) if word else HIDDEN


def _mark(found: re.Match[str]) -> str:
    """Put a mark before the value of a name that is one of a secret."""
    name, value = found["name"] or found["option"], found["value"].strip("\"'")
    return found[0] + "\0" * _is_named_secret(name, value)


def _is_named_secret(name: str, value: str) -> bool:
    """Return True if a value that has this name is secret."""
    if _HARMLESS.fullmatch(value):
        return False
    name = "_".join(_WORD.findall(name)).lower()
    is_likely = _LIKELY_NAME.search(name) and _RANDOM.search(value[:1000])
    return bool(_SECRET_NAME.search(name) or is_likely)
