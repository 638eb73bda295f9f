"""Start script: downloads a container's workspace before its command runs. No I/O.

The image does not need farcall. It needs a shell with the usual tools (``od``, ``tr``, ``sed``,
``cut``, ``date``, ``mktemp``, ``sha256sum``: coreutils or busybox), ``python3``, ``curl`` or
``wget`` for the download, and ``python3`` or ``tar`` with ``gzip`` for unpacking.

The container uses the credentials of its job role, as AWS's SDKs do: from the endpoint that ECS
provides, or from keys in its environment. A presigned URL in the job's command would be a secret
that is visible to everyone who may describe the job. It would also expire while a job waits in
its queue: after some hours with a role's credentials, after 7 days with a user's. So the container
signs a URL itself, which is valid for some minutes and only for this object. The shell signs it
with ``sha256sum``, because ``wget`` cannot sign, and older versions of ``curl`` cannot, either.
The download is unpacked only if it has the hash that the command names.

The script is the same for all workspaces; only its arguments differ, so a job's command shows what
it downloads. The script contains no double dollar sign and no name of a TorchX macro, because
TorchX would replace them.

Sources:
    https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html
    https://docs.aws.amazon.com/AmazonECS/latest/developerguide/task-iam-roles.html
    https://docs.aws.amazon.com/sdkref/latest/guide/feature-container-credentials.html
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote

TOOLS_MISSING = 80
"""Exit code of a container without a program that can download its workspace."""

NO_CREDENTIALS = 81
"""Exit code of a container without credentials."""

NOT_FETCHED = 82
"""Exit code of a container that could not download its workspace."""

TAMPERED = 83
"""Exit code of a container whose workspace differs from the uploaded one."""

NOT_UNPACKED = 84
"""Exit code of a container that could not write or enter its workspace."""

# Arguments: region, URL of the bucket, bucket, key, SHA-256, folder (. for the current one), and
# the command.
#
#   d  exit with a message                     g  download a URL, with an optional header
#   x  hash of stdin                           e  field of the credentials
#   p  bytes of hexadecimal digits, each       s  HMAC of a text, with a hexadecimal key
#      XORed with a number
#
# For the HMAC, the key is padded with zeros to 64 bytes, two hexadecimal digits each.
SCRIPT = r"""d(){ echo "farcall: workspace: $2">&2;exit $1;}
h(){ command -v $1 >/dev/null;}
for t in od tr sed cut date mktemp sha256sum;do h $t||d 80 "the image has no $t";done
if h python3;then g(){ python3 -c 'import sys,shutil
from urllib.request import *
_,u,*k=sys.argv
try:
 r=urlopen(Request(u,headers=dict(x.split(": ")for x in k)),timeout=60)
 shutil.copyfileobj(r,sys.stdout.buffer)
 if r.length:raise OSError("ended early")
except OSError as e:sys.exit(e)' "$@";}
elif h curl;then g(){ curl -sSf ${2:+-H "$2"} "$1";}
elif h wget;then g(){ wget -qO- ${2:+--header "$2"} "$1";}
else d 80 "the image has none of python3, curl and wget";fi
h python3||h tar||d 80 "the image has neither python3 nor tar";
R=$1 U=$2 B=$3 O=$4 S=$5 W=$6;shift 6;E=${AWS_ENDPOINT_URL_S3:-$AWS_ENDPOINT_URL}
[ ! "$E" ]||U=${E%/}/$B
K=$AWS_ACCESS_KEY_ID X=$AWS_SECRET_ACCESS_KEY T=$AWS_SESSION_TOKEN
if [ ! "$K" ];then C=$AWS_CONTAINER_CREDENTIALS_RELATIVE_URI
C=${C:+http://169.254.170.2$C};C=${C:-$AWS_CONTAINER_CREDENTIALS_FULL_URI}
[ "$C" ]||d 81 "the job has no role, hence no credentials"
A=$AWS_CONTAINER_AUTHORIZATION_TOKEN F=$AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE
[ ! "$F" ]||read -r A<"$F"||[ "$A" ]
C=$(unset http_proxy HTTP_PROXY all_proxy ALL_PROXY;g "$C" ${A:+"Authorization: $A"})||d 81 "the job role gave no credentials"
e(){ echo "$C"|tr -d '\n'|sed 's/.*"'$1'" *: *"\([^"]*\)".*/\1/';}
K=$(e AccessKeyId) X=$(e SecretAccessKey) T=$(e Token);fi
x(){ sha256sum|cut -c1-64;}
p(){ k=$1 o=;while [ $k ];do n=${k#??};v=$((0x${k%$n}^$2));o=$o\\$((v/64))$((v/8%8))$((v%8));k=$n;done;printf "$o";}
s(){ k=$(printf %-128s $1|tr ' ' 0);i=$( (p $k 54;printf %s "$2")|x);(p $k 92;p $i 0)|x;}
f=$(mktemp)||f=$PWD/.farcall-workspace;n=1
T=$(echo "$T"|sed 's,/,%2F,g;s,+,%2B,g;s,=,%3D,g');H=${U#*://};H=${H%%/*};Q=/${U#*://};Q=${Q#"/$H"}/$O
until D=$(date -u +%Y%m%dT%H%M%SZ);d8=${D%T*}
q="X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=$K%2F$d8%2F$R%2Fs3%2Faws4_request&X-Amz-Date=$D&X-Amz-Expires=900${T:+&X-Amz-Security-Token=$T}&X-Amz-SignedHeaders=host"
c=$(printf 'GET\n%s\n%s\nhost:%s\n\nhost\nUNSIGNED-PAYLOAD' "$Q" "$q" $H|x)
k=$(printf %s "AWS4$X"|od -An -v -tx1|tr -d ' \n')
for m in $d8 $R s3 aws4_request;do k=$(s $k $m);done
g "$U/$O?$q&X-Amz-Signature=$(s $k "AWS4-HMAC-SHA256
$D
$d8/$R/s3/aws4_request
$c")">"$f"
do [ $n -lt 16 ]||d 82 "s3://$B/$O cannot be fetched: is it there, and may the job role read it?";sleep $n;n=$((n*2));done
[ "$(x<"$f")" = $S ]||d 83 "s3://$B/$O is not what was uploaded, and nothing was run"
[ -d "$W" ]||mkdir -p "$W";cd "$W"||d 84 "no way into $W"
if h tar&&h gzip;then tar -xzpf "$f";else python3 -c 'import sys,tarfile
t=tarfile.open(sys.argv[1]);t.extraction_filter=lambda m,_:m;t.extractall()' "$f";fi||d 84 "cannot be unpacked in $(pwd)"
rm "$f";exec "$@"
"""  # noqa: E501

HERE = "."
"""Folder of a workspace that is unpacked in the container's working directory."""

_HEAD = ("sh", "-c", SCRIPT, "farcall-workspace")
_ARGUMENTS = 6


class Fetched(NamedTuple):
    """Workspace that a command downloads.

    Attributes:
        region: Region of the bucket.
        url: URL of the bucket, without a trailing slash.
        bucket: Name of the bucket.
        key: Key of the object.
        sha256: Hash of the object, hexadecimal.
        folder: Folder in which it is unpacked and the command starts; ``.`` for the image's
            working directory.
    """

    region: str
    url: str
    bucket: str
    key: str
    sha256: str
    folder: str = HERE


def wrap(command: Sequence[str], workspace: Fetched) -> list[str]:
    """Return a command that downloads a workspace and then executes another command.

    Args:
        command: Program and arguments.
        workspace: The workspace, which replaces any that the command already downloads.

    Raises:
        ValueError: The command is empty; the image's own command is unknown here.
    """
    _, plain = unwrap(command)
    if not plain:
        raise ValueError("there is no command to run in the workspace")
    # As in the signature, which encodes all other characters.
    key = quote(workspace.key, safe="/-._~")
    return [
        *_HEAD,
        workspace.region,
        workspace.url,
        quote(workspace.bucket, safe="-._~"),
        key,
        workspace.sha256,
        workspace.folder,
        *plain,
    ]


def unwrap(command: Sequence[str]) -> tuple[Fetched | None, list[str]]:
    """Return the workspace that a command downloads, or None, and the command itself."""
    start = len(_HEAD)
    if tuple(command[:start]) != _HEAD or len(command) < start + _ARGUMENTS:
        return None, list(command)
    region, url, bucket, key, sha256, folder = command[start : start + _ARGUMENTS]
    workspace = Fetched(region, url, unquote(bucket), unquote(key), sha256, folder)
    return workspace, list(command[start + _ARGUMENTS :])
