# The peer's image: what its own Dockerfile (covalent-aws-plugins) puts on a slim Python, which is
# boto3, Covalent and exec.py. Not rsync, which is there for another executor, and no pip cache.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
ARG PIP_INDEX_URL
WORKDIR /covalent
RUN python3 -m pip install --no-cache-dir boto3
RUN python3 -m pip install --no-cache-dir \
    "covalent==0.240.0" "covalent-aws-plugins==0.19.0" "fastapi<0.132" numpy
RUN where=$(python3 -m pip show covalent-aws-plugins | sed -n "s/^Location: //p") \
    && cp "$where/covalent_aws_plugins/exec.py" .
ENTRYPOINT ["python3"]
CMD ["/covalent/exec.py"]
