#!/bin/sh
# Builds llama.cpp's server for this CPU and makes a float32 GGUF of a model folder.
#
#   llamacpp.sh MODEL WORK       MODEL: folder with safetensors; WORK: where everything goes (1.5 GB)
#
# Needs cmake, a C++ compiler and a Python with pip. About half an hour on two cores.
set -eu
VERSION=0.3.36
MODEL=$(realpath "$1")
mkdir -p "$2"
cd "$2"

python3 -m venv venv
venv/bin/pip download --quiet --no-deps --no-binary llama-cpp-python "llama-cpp-python==$VERSION"
tar xzf llama_cpp_python-"$VERSION".tar.gz
TREE=llama_cpp_python-$VERSION/vendor/llama.cpp

cmake -S "$TREE" -B build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_BUILD_SERVER=ON \
    -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_UI=OFF \
    -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_APP=OFF
cmake --build build --target llama-server llama-quantize llama-perplexity --parallel "$(nproc)"

venv/bin/pip install --quiet torch transformers sentencepiece protobuf "gguf>=0.17"
venv/bin/python "$TREE/convert_hf_to_gguf.py" "$MODEL" --outtype f32 --outfile model-f32.gguf
for program in llama-server llama-quantize llama-perplexity; do
    ln -sf "build/bin/$program" "$program"
done
./llama-quantize model-f32.gguf model-q8_0.gguf Q8_0
./llama-quantize model-f32.gguf model-q4_k_m.gguf Q4_K_M
echo "server: $PWD/llama-server"
echo "models: $PWD/model-f32.gguf, model-q8_0.gguf, model-q4_k_m.gguf"
