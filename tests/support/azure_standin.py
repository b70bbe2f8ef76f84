"""A stand-in for Azure: the few REST calls that its SDK sends for hpcdist, answered in their form.

It is a proxy that the SDK goes through (HTTPS_PROXY) and that is every host of Azure's to it, by a
certificate of its own. So the SDK's real client runs, with its own retries, log-in and uploads, and
no host but those named here can be spoken to: the certificate is for no other.
"""

import base64
import datetime as dt
import json
import re
import ssl
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

SUBSCRIPTION = "12345678-1234-1234-1234-123456789abc"
PROVIDER = "Microsoft.MachineLearningServices"
GROUP = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/course"
WORKSPACE = f"{GROUP}/providers/{PROVIDER}/workspaces/ml-course"
ARM = "management.azure.com"
BLOBS = "mlstore.blob.core.windows.net"
REGION = "westeurope.api.azureml.ms"
HOSTS = (ARM, BLOBS, REGION)
IDENTITY_HEADER = "stand-in-identity"
PROFILE = {
    "subscription": SUBSCRIPTION,
    "resource_group": "course",
    "workspace": "ml-course",
    "compute": "gpu-cluster",
    "environment": "torch:3",
}
_MODIFIED = "Mon, 23 Nov 2026 01:00:00 GMT"
_ACTIVE = ("NotStarted", "Queued", "Preparing", "Provisioning", "Starting", "Running", "Finalizing")


def azure_error(code, message):
    return {"error": {"code": code, "message": message, "details": []}}


def thing(place, kind, properties, **more):
    """What Azure Resource Manager says of something in the workspace."""
    return {
        "id": f"{WORKSPACE}/{place}",
        "name": place.rpartition("/")[2],
        "type": f"{PROVIDER}/workspaces/{kind}",
        "location": "westeurope",
        "properties": properties,
        **more,
    }


class Call(NamedTuple):
    """A request to the workspace."""

    method: str
    parts: list
    """What stands behind the kind of the thing."""
    query: dict
    body: dict | None


class Azure:
    """One workspace with its computes, environments, jobs and blobs; tests change it."""

    def __init__(self):
        self.lock = threading.RLock()
        self.requests = []
        """(method, host, path without query, query), in their order."""
        self.unknown_hosts = []
        self.jobs = {}
        self.blobs = {}
        """container/name -> (bytes, metadata)"""
        self.codes = {}
        self.computes = {
            "gpu-cluster": {"vmSize": "Standard_NC24ads_A100_v4", "maxNodeCount": 4},
            "cpu-cluster": {"vmSize": "Standard_D4s_v3", "maxNodeCount": 2},
        }
        self.environments = {"torch": ["1", "2", "3"]}
        self.datastores = ["workspaceblobstore", "workspaceartifactstore"]
        self.faults = []
        self.tokens = 0
        self.token_lasts_s = 3600.0
        self.issued = set()
        """Tokens that count."""

    def fail(
        self,
        method,
        pattern,
        status,
        *,
        code="",
        message="",
        headers=None,
        times=1,
        after=False,
        delay_s=0.0,
    ):
        """Answer so many requests otherwise; with `after`, once they were carried out; status 0
        breaks the connection off."""
        body = azure_error(code, message)
        self.faults.append(
            {
                "method": method,
                "pattern": re.compile(pattern),
                "answer": (status, body, headers or {}),
                "times": times,
                "after": after,
                "delay_s": delay_s,
            }
        )

    def asked(self, method, pattern):
        """Return the requests that match."""
        found = (one for one in self.requests if one[0] == method)
        return [one for one in found if re.search(pattern, one[1] + one[2])]

    def fault(self, method, place):
        with self.lock:
            for one in self.faults:
                if one["times"] and one["method"] == method and one["pattern"].search(place):
                    one["times"] -= 1
                    return one
        return None

    def set_state(self, name, state):
        self.jobs[name]["properties"]["status"] = state

    def job_ids(self):
        return sorted(self.jobs)

    # Azure Resource Manager.

    def arm(self, method, path, query, body):
        if path.lower() == WORKSPACE.lower():
            return 200, self.workspace()
        sizes = re.fullmatch(
            r"/subscriptions/[^/]+/providers/Microsoft.MachineLearningServices/locations/(\w+)/vmSizes",
            path,
        )
        if sizes:
            return 200, self.vm_sizes()
        if not path.startswith(WORKSPACE + "/"):
            return 404, azure_error("ResourceNotFound", f"The Resource '{path}' was not found.")
        parts = path[len(WORKSPACE) + 1 :].split("/")
        handler = getattr(self, f"on_{parts[0]}", None)
        if handler is None:
            return 404, azure_error("NotFound", f"no route {path}")
        return handler(Call(method, parts[1:], query, body))

    def workspace(self):
        urls = {"discoveryUrl": f"https://{REGION}/discovery", "workspaceId": "0" * 32}
        properties = {"friendlyName": "ml-course", "provisioningState": "Succeeded"} | urls
        own = {"id": WORKSPACE, "name": "ml-course", "type": f"{PROVIDER}/workspaces"}
        return {"location": "westeurope", "properties": properties} | own

    def vm_sizes(self):
        sizes = [("Standard_NC24ads_A100_v4", 24, 1, 220.0), ("Standard_D4s_v3", 4, 0, 16.0)]
        rest = {
            "lowPriorityCapable": True,
            "premiumIO": True,
            "supportedComputeTypes": ["AmlCompute"],
            "family": "standardFamily",
            "osVhdSizeMB": 1,
            "maxResourceVolumeMB": 1,
        }
        return {
            "value": [
                {"name": name, "vCPUs": cpus, "gpus": gpus, "memoryGB": memory} | rest
                for name, cpus, gpus, memory in sizes
            ]
        }

    def compute(self, name):
        options = self.computes[name]
        scale = {"minNodeCount": 0, "maxNodeCount": options["maxNodeCount"]}
        size = {
            "vmSize": options["vmSize"],
            "vmPriority": options.get("priority", "Dedicated"),
            "scaleSettings": scale | {"nodeIdleTimeBeforeScaleDown": "PT120S"},
            "currentNodeCount": 0,
        }
        state = options.get("state", "Succeeded")
        properties = {"computeType": "AmlCompute", "provisioningState": state, "properties": size}
        return thing(f"computes/{name}", "computes", properties)

    def on_computes(self, call):
        if not call.parts:
            return 200, {"value": [self.compute(name) for name in self.computes]}
        if call.parts[0] not in self.computes:
            return 404, azure_error(
                "ResourceNotFound",
                f"The Resource '{PROVIDER}/workspaces/ml-course/computes/{call.parts[0]}' under "
                "resource group 'course' was not found.",
            )
        return 200, self.compute(call.parts[0])

    def environment(self, name, version):
        properties = {
            "image": "pytorch",
            "osType": "Linux",
            "environmentType": "UserCreated",
            "isAnonymous": False,
            "isArchived": False,
        }
        created = {"createdAt": "2026-01-01T00:00:00Z"}
        place = f"environments/{name}/versions/{version}"
        return thing(place, "environments/versions", properties, systemData=created)

    def newest_environment(self, name):
        latest = {"latestVersion": self.environments[name][-1], "isArchived": False}
        return thing(f"environments/{name}", "environments", latest)

    def on_environments(self, call):
        if not call.parts:
            return 200, {"value": [self.newest_environment(name) for name in self.environments]}
        name, *rest = call.parts
        versions = self.environments.get(name, [])
        if call.method == "PUT":
            return 201, self.environment(name, rest[1])
        if not rest and versions:
            return 200, self.newest_environment(name)
        if len(rest) == 1 and versions:
            return 200, {"value": [self.environment(name, one) for one in reversed(versions)]}
        if len(rest) == 2 and rest[1] in versions:
            return 200, self.environment(name, rest[1])
        return 404, azure_error("UserError", f"Environment {'/'.join(call.parts)} was not found.")

    def on_datastores(self, call):
        properties = {
            "datastoreType": "AzureBlob",
            "accountName": "mlstore",
            "containerName": "blobs",
            "endpoint": "core.windows.net",
            "protocol": "https",
            "credentials": {"credentialsType": "AccountKey"},
        }
        found = [
            thing(
                f"datastores/{name}",
                "datastores",
                properties | {"isDefault": name == self.datastores[0]},
            )
            for name in self.datastores
        ]
        if not call.parts:
            return 200, {"value": found}
        named = [one for one in found if one["name"] == call.parts[0]]
        if not named:
            return 404, azure_error("UserError", f"Could not find datastore: {call.parts[0]}")
        if call.parts[1:] == ["listSecrets"]:
            return 200, {"secretsType": "Sas", "sasToken": "sv=2024&sig=standin"}
        return 200, named[0]

    def on_codes(self, call):
        if call.parts[-1] == "startPendingUpload":
            uri = f"https://{BLOBS}/code-{call.parts[0]}"
            secret = {"credentialType": "SAS", "sasUri": f"{uri}?sv=2024&sig=standin"}
            place = {"blobUri": uri, "storageAccountArmId": "x", "credential": secret}
            return 200, {
                "pendingUploadId": "1",
                "pendingUploadType": "TemporaryBlobReference",
                "blobReferenceForConsumption": place,
            }
        key = f"{call.parts[0]}/{call.parts[2]}" if len(call.parts) == 3 else None
        if key is None:
            wanted = call.query.get("hash", [""])[0]
            found = [
                one
                for one in self.codes.values()
                if wanted and one["properties"]["properties"].get("hash_sha256") == wanted
            ]
            return 200, {"value": found}
        if call.method == "PUT":
            place = f"codes/{call.parts[0]}/versions/{call.parts[2]}"
            self.codes[key] = thing(place, "codes/versions", {}) | call.body
            return 201, self.codes[key]
        if key not in self.codes:
            return 404, azure_error("UserError", "no such code")
        return 200, self.codes[key]

    def on_jobs(self, call):
        if not call.parts:
            return 200, {"value": list(self.jobs.values())}
        name = call.parts[0]
        if call.method == "PUT":
            return self.put_job(name, call.body)
        if name not in self.jobs:
            return 404, azure_error("UserError", f"Cannot find run {name}.")
        job = self.jobs[name]
        if call.parts[1:] == ["cancel"]:
            if job["properties"]["status"] in _ACTIVE:
                job["properties"]["status"] = "Canceled"
            elif job["properties"]["status"] != "Canceled":
                return 400, azure_error(
                    "UserError",
                    f"Run {name} is in the terminal state {job['properties']['status']}.",
                )
            return 200, None
        return 200, job

    def put_job(self, name, body):
        properties = body["properties"]
        compute = properties["computeId"].rpartition("/")[2]
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,254}", name):
            return 400, azure_error("UserError", f"The name {name} is not valid.")
        if compute not in self.computes:
            said = f"The specified compute target {compute} was not found."
            return 404, azure_error("UserError", said)
        if "codes" not in properties["codeId"]:
            return 400, azure_error("UserError", "no code")
        if name in self.jobs:
            said = "Only tags, isArchived and displayName can be changed."
            return 400, azure_error("UserError", said)
        created = {"createdAt": dt.datetime.now(dt.timezone.utc).isoformat(), "createdBy": "Ann"}
        job = thing(f"jobs/{name}", "jobs", {}, systemData=created) | body
        studio = {"jobServiceType": "Studio", "endpoint": f"https://ml.azure.com/runs/{name}"}
        job["properties"] |= {"status": "Queued", "services": {"Studio": studio}}
        self.jobs[name] = job
        return 201, job

    # Storage.

    def blob(self, method, path, query, body, headers):  # noqa: PLR0911 - a table of calls
        key = unquote(path).lstrip("/")
        if query.get("comp") == ["list"]:
            container, prefix = key, query.get("prefix", [""])[0]
            names = sorted(name for name in self.blobs if name.startswith(f"{container}/{prefix}"))
            items = "".join(
                f"<Blob><Name>{name[len(container) + 1 :]}</Name><Properties>"
                f"<Content-Length>{len(self.blobs[name][0])}</Content-Length>"
                f"<Last-Modified>{_MODIFIED}</Last-Modified><Etag>0x1</Etag>"
                "<BlobType>BlockBlob</BlobType></Properties></Blob>"
                for name in names
            )
            head = '<?xml version="1.0" encoding="utf-8"?><EnumerationResults>'
            text = f"{head}<Blobs>{items}</Blobs><NextMarker /></EnumerationResults>"
            return 200, text.encode(), {"Content-Type": "application/xml"}
        what = query.get("comp", [""])[0] if method == "PUT" else ""
        if what == "metadata":
            named = {
                name[10:]: headers[name] for name in headers if name[:10].lower() == "x-ms-meta-"
            }
            self.blobs[key] = (self.blobs[key][0], named)
            return 200, b"", {}
        if what == "block":
            before, _ = self.blobs.get(f"{key}#blocks", (b"", {}))
            self.blobs[f"{key}#blocks"] = (before + body, {})
            return 201, b"", {}
        if method == "PUT":
            self.blobs[key] = self.blobs.pop(f"{key}#blocks") if what == "blocklist" else (body, {})
            return 201, b"", {"ETag": '"0x1"', "Last-Modified": _MODIFIED}
        if key not in self.blobs:
            return 404, b"", {"x-ms-error-code": "BlobNotFound"}
        content, metadata = self.blobs[key]
        found = {f"x-ms-meta-{name}": value for name, value in metadata.items()} | {
            "x-ms-blob-type": "BlockBlob",
            "ETag": '"0x1"',
            "Last-Modified": _MODIFIED,
        }
        asked = headers.get("x-ms-range") or headers.get("Range")
        if asked and method == "GET":
            first, _, last = asked.removeprefix("bytes=").partition("-")
            first, last = int(first), min(int(last or 1 << 60), len(content) - 1)
            if first >= len(content):
                whole = {"Content-Range": f"bytes */{len(content)}"}
                return 416, b"", {"x-ms-error-code": "InvalidRange"} | whole
            found["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            return 206, content[first : last + 1], found
        return 200, content, found

    def put_output(self, job, place, content):
        """Write a file of the mounted output of a job."""
        self.blobs[f"blobs/hpcdist/{job}/{place}"] = (content, {})


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    host = None

    def do_CONNECT(self):
        host = self.path.partition(":")[0]
        self.send_response(200)
        self.end_headers()
        try:
            self.connection = self.server.context.wrap_socket(self.connection, server_side=True)
        except (ssl.SSLError, OSError):
            self.server.azure.unknown_hosts.append(host)
            self.close_connection = True
            return
        self.rfile, self.wfile = (
            self.connection.makefile("rb", -1),
            self.connection.makefile("wb", 0),
        )
        self.host = host
        self.close_connection = False

    def finish(self):
        super().finish()
        self.connection.close()

    def _answer(self):
        azure = self.server.azure
        parts = urlsplit(self.path)
        query = parse_qs(parts.query, keep_blank_values=True)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.host is None:
            self._send(*self._token(query))
            return
        azure.requests.append((self.command, self.host, parts.path, query))
        fault = azure.fault(self.command, f"{self.host}{parts.path}?{parts.query}")
        if fault and not fault["after"]:
            self._send_fault(fault)
            return
        with azure.lock:
            answer = self._carry_out(azure, parts.path, query, body)
        if fault:
            self._send_fault(fault)
        else:
            self._send(*answer)

    do_GET = do_PUT = do_POST = do_HEAD = _answer  # noqa: N815 - names of http.server

    def _token(self, query):
        azure = self.server.azure
        if self.headers.get("X-IDENTITY-HEADER") != IDENTITY_HEADER:
            return 401, {"error": "no identity"}, {}
        azure.tokens += 1
        token = _token_of_tenant(azure.tokens)
        azure.issued.add(token)
        answer = {
            "access_token": token,
            "expires_on": str(int(time.time() + azure.token_lasts_s)),
            "resource": query.get("resource", [""])[0],
            "token_type": "Bearer",
        }
        return 200, answer, {}

    def _carry_out(self, azure, path, query, body):
        if self.host == BLOBS:
            return azure.blob(self.command, path, query, body, self.headers)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in azure.issued:
            said = "The access token expiry UTC time is earlier than current UTC time."
            asks = {"WWW-Authenticate": 'Bearer error="invalid_token"'}
            return 401, azure_error("ExpiredAuthenticationToken", said), asks
        if self.host == ARM:
            status, answer = azure.arm(
                self.command, path, query, json.loads(body) if body else None
            )
            return status, answer, {}
        return 404, azure_error("NotFound", path), {}

    def _send_fault(self, fault):
        time.sleep(fault["delay_s"])
        status, body, headers = fault["answer"]
        if status == 0:
            self.close_connection = True
            self.connection.close()
            return
        self._send(status, body, headers)

    def _send(self, status, body, headers):
        content = (
            body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        )
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_):
        pass


def _token_of_tenant(number):
    claims = json.dumps({"tid": "tenant", "number": number}).encode()
    return f"e30.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.sig"


@contextmanager
def azure_standin(folder):
    """Start the stand-in; yield it, and the variables by which the SDK comes to it."""
    certificate = _certificate(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.azure = Azure()
    server.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.context.load_cert_chain(certificate)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    place = f"http://127.0.0.1:{server.server_port}"
    try:
        yield (
            server.azure,
            {
                "HTTPS_PROXY": place,
                "NO_PROXY": "127.0.0.1",
                "REQUESTS_CA_BUNDLE": str(certificate),
                "IDENTITY_ENDPOINT": f"{place}/token",
                "IDENTITY_HEADER": IDENTITY_HEADER,
            },
        )
    finally:
        server.shutdown()
        server.server_close()


def _certificate(folder):
    """Write a certificate for the hosts, and its key, into one file; it is trusted by itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "stand-in for Azure")])
    now = dt.datetime.now(dt.timezone.utc)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(host) for host in HOSTS]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "stand-in.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + built.public_bytes(serialization.Encoding.PEM))
    return path
