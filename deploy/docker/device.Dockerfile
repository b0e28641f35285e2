# A device of a testbed: worker, fork server and its SuperNodes, in one container (device.sh); for x86-64 and arm64.
# Not built so far: no machine of ours has a container daemon. tests/deployment/test_docker.py checks files and commands.
#   docker build --file deploy/docker/device.Dockerfile --tag fedpfl-device .        # in the checkout
FROM python:3.11-slim@sha256:9c900dea9e8fb7e16277c179b555cc72d29a352dbc33cff48ad5a0412fd5bfc7

# The server's packages: a board's lock (jetson/) is for aarch64 and has no scikit-learn for the default data set.
ARG EXTRA_INDEX=https://pypi.org/simple
COPY deploy/requirements-server.txt /opt/fedpfl/requirements.txt
RUN pip install --no-cache-dir --extra-index-url "$EXTRA_INDEX" --require-hashes --only-binary :all: \
    --requirement /opt/fedpfl/requirements.txt

COPY . /opt/fedpfl/source
RUN pip install --no-cache-dir --no-index --no-deps --no-build-isolation /opt/fedpfl/source

COPY deploy/docker/device.sh /usr/local/bin/fedpfl-testbed-device
RUN useradd --uid 10001 --home-dir /var/lib/fedpfl --create-home fedpfl \
    && install -d -m 0700 -o fedpfl -g fedpfl /keys /run/fedpfl \
    && chmod 0755 /usr/local/bin/fedpfl-testbed-device
USER fedpfl
WORKDIR /var/lib/fedpfl
ENV HOME=/var/lib/fedpfl \
    FLWR_TELEMETRY_ENABLED=0 \
    FLWR_DISABLE_UPDATE_CHECK=1 \
    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
VOLUME ["/var/lib/fedpfl"]
ENTRYPOINT ["/usr/local/bin/fedpfl-testbed-device"]
