# Sets the companion up and runs the tour when the container starts:
#   docker build -t harp . && docker run --rm -v "$PWD/out:/harp/notebooks/executed" harp
FROM python:3.11-slim

RUN apt-get update \
    && apt-get install --yes --no-install-recommends git \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /harp
COPY . .
# The CPU build of torch; leave the three arguments out for the CUDA build.
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
ARG UV_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
# uv would else take every package of that index from it alone.
ARG UV_INDEX_STRATEGY=unsafe-best-match
RUN ./run_all.sh setup
ENTRYPOINT ["./run_all.sh"]
