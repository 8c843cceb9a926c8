# Sets the companion up and runs the tour when the container starts:
#   docker build -t harp . && docker run --rm -v "$PWD/out:/harp/notebooks/executed" harp
FROM python:3.11-slim

RUN apt-get update \
    && apt-get install --yes --no-install-recommends git \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /harp
COPY . .
# The CPU build of torch; leave the two arguments out for the CUDA build.
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
ARG UV_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
RUN ./run_all.sh setup
ENTRYPOINT ["./run_all.sh"]
