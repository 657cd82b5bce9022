# One image for SuperLink, SuperNode and one-shot commands: Sepal, Flower and what they need, each file checked against
# a digest (`make -C tools requirements`). No secrets: keys and certificates come from a volume (docker-compose.yml) or a secret
# store.
#   BASE_IMAGE       any image with Python 3.11 and pip; by digest (python:3.11-slim@sha256:…) it is always the same one
#   FLOWER           grpc: 1.39, the tested default; http: the newest one of constraints-current.txt
#   TORCH            cuda, or cpu with TORCH_INDEX_URL
#   TORCH_INDEX_URL  PyTorch's own index, which has torch's CPU build
ARG BASE_IMAGE=python:3.11-slim
# hadolint ignore=DL3006
FROM ${BASE_IMAGE}

ARG FLOWER=grpc
ARG TORCH=cuda
ARG TORCH_INDEX_URL=""
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PIP_NO_CACHE_DIR=1 \
    FLWR_HOME=/home/sepal/.flwr \
    SEPAL_HOME=/home/sepal/.sepal \
    FLWR_TELEMETRY_ENABLED=0 \
    FLWR_DISABLE_UPDATE_CHECK=1 \
    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1

# Directories that volumes are mounted on: a new volume takes owner and mode from them.
RUN useradd --uid 49999 --create-home sepal \
    && install -d -m 700 -o sepal -g sepal "$FLWR_HOME" "$SEPAL_HOME" \
        /certs /certs/ca /certs/server /certs/nodes /runs /data
WORKDIR /app

# Before the code, so that a change of the code does not install them again.
COPY requirements.txt requirements-*.txt ./
RUN pip install --require-hashes ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} \
    -r requirements.txt -r "requirements-${FLOWER}.txt" -r "requirements-${TORCH}.txt"

COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY sepal sepal
COPY models models
COPY strategies strategies
COPY client_app client_app
COPY server_app server_app
RUN pip install --no-deps --no-build-isolation --no-index .

USER 49999
WORKDIR /home/sepal
ENTRYPOINT ["sepal"]
CMD ["--help"]
