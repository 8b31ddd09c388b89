# istbench for CPUs, without root and without compilers (docs/container.md):
#
#   docker build --tag istbench .
#   docker run --rm --volume "$PWD:/workspace" --user "$(id -u):$(id -g)" istbench compare quick
#
# PyTorch's usual wheels bring CUDA. Its index of wheels for the CPU saves four gigabytes:
#   --build-arg PIP_OPTIONS="--extra-index-url ADDRESS"
ARG PYTHON=3.12

# Only a change of setup.cfg or of an argument installs the requirements again.
FROM python:${PYTHON}-slim AS requirements
ARG PIP_OPTIONS=""
# Synthetic words need eSpeak NG, under GPL-3. --build-arg EXTRAS="" leaves it out.
ARG EXTRAS="speech"
WORKDIR /build
RUN python -m venv /opt/istbench
COPY setup.cfg .
RUN python -c 'import configparser, sys; found = configparser.ConfigParser(); found.read("setup.cfg"); \
        print(found["options"]["install_requires"], *map(found["options.extras_require"].get, sys.argv[1:]))' \
        ${EXTRAS} > requirements.txt \
    && /opt/istbench/bin/pip install --quiet --no-cache-dir ${PIP_OPTIONS} --requirement requirements.txt

FROM requirements AS build
COPY . .
RUN /opt/istbench/bin/pip install --quiet --no-cache-dir --no-deps --ignore-installed --prefix /opt/own .

FROM python:${PYTHON}-slim
# Users of any number may write there (docker run --user).
RUN useradd --uid 1000 --user-group --create-home istbench && mkdir --mode 1777 /workspace /var/cache/istbench
COPY --from=requirements /opt/istbench /opt/istbench
COPY --from=build /opt/own /opt/istbench
ENV PATH=/opt/istbench/bin:$PATH \
    ISTBENCH_CACHE=/var/cache/istbench/data \
    NUMBA_CACHE_DIR=/var/cache/istbench/compiled \
    MPLCONFIGDIR=/var/cache/istbench/matplotlib
USER istbench
WORKDIR /workspace
VOLUME /workspace
ENTRYPOINT ["istbench"]
CMD ["--help"]
