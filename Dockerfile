# The image of farcall's jobs: Python, cloudpickle, obstore, and farcall_runtime. Its Python must
# have the same minor version as the workflow's.
#
#   docker build -t my-jobs --build-arg PIP_PACKAGES="numpy scikit-learn" .
#
# An installed farcall has this file, too: farcall image build --tag my-jobs --packages "numpy scikit-learn"
ARG BASE_IMAGE=python:3.11-slim
FROM ${BASE_IMAGE}

# Packages the functions import, as pip writes them; empty for none.
ARG PIP_PACKAGES=""
# Package index in place of PyPI. Without a password: docker history shows it.
ARG PIP_INDEX_URL

# farcall_runtime, and the requirements file that `farcall image build` may add to it.
COPY runtime_image /opt/farcall
RUN python3 -m pip install --no-cache-dir "cloudpickle>=3.1" "obstore>=0.11" ${PIP_PACKAGES}
RUN python3 -m compileall -q /opt/farcall/farcall_runtime

ENV PYTHONPATH=/opt/farcall HOME=/tmp LOGNAME=farcall
# Version of the contract between image and client (farcall_runtime/contract.py).
LABEL farcall.protocol-version="1"

# Not root; a number, so that no user has to be made and none can be missing.
USER 10001:10001
WORKDIR /tmp
# The exec form, so that Batch's SIGTERM reaches Python and no shell. With -P, Python does not import
# a json.py or logging.py of the working directory instead of the standard library's.
ENTRYPOINT ["python3", "-P", "-m", "farcall_runtime"]
