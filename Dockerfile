# The service in an image: docker build -t kafka-assigner .
# The steps are in tools/image_build.sh, which the tests run as they are, without Docker.
# A tag moves. To build from what was looked at: docker build --build-arg PYTHON_IMAGE=python@sha256:... .
ARG PYTHON_IMAGE=python:3.11-slim

FROM ${PYTHON_IMAGE} AS builder
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /source
# What changes seldom comes first, so that a change of the code leaves the dependencies' layer as it is.
COPY tools/image_build.sh tools/image_build.sh
COPY requirements requirements
RUN sh tools/image_build.sh dependencies /opt/assigner
COPY pyproject.toml README.md LICENSE ./
COPY assigner assigner
COPY backends backends
COPY strategies strategies
RUN sh tools/image_build.sh project /opt/assigner

FROM ${PYTHON_IMAGE}
# Nothing is ever installed into a running service.
RUN python -m pip uninstall --yes --quiet pip setuptools wheel 2>/dev/null \
    && rm -rf /usr/local/lib/python3.11/ensurepip
COPY --from=builder /opt/assigner /opt/assigner
ENV PATH=/opt/assigner/bin:${PATH} PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# On the container's loopback it would be healthy and reached by nobody. gRPC wants TLS here, or --insecure, and
# keys for tokens, or --auth-required false. So does the gateway for Kafka clients, which runs where it is asked for:
# `serve --gateway`, or `--entrypoint assigner ... gateway`.
ENV ASSIGNER_GRPC_HOST=0.0.0.0 ASSIGNER_HTTP_HOST=0.0.0.0 ASSIGNER_GATEWAY_HOST=0.0.0.0
# A number, so that Kubernetes can verify that it is not root.
USER 10001:10001
EXPOSE 50051 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ.get('ASSIGNER_HTTP_PORT', '8080') + '/readyz', timeout=2)"]
ENTRYPOINT ["assigner", "serve"]
