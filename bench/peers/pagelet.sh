#!/usr/bin/env bash
# Pagelet itself, in the same terms as its peers. PAGELET is the command to run.
# VARIANT: bfloat16 or float32 (--dtype, nothing quantised), or auto, int8 or int4 (--quantization).
set -euo pipefail
usage() {
  echo "usage: pagelet.sh installed|version|install DIR | prepare DIR MODEL VARIANT OUT |" \
    "serve DIR MODEL VARIANT PORT SLOTS CONTEXT" >&2
  exit 2
}
[ $# -ge 2 ] || usage
pagelet=${PAGELET:-pagelet}
case $1 in
installed) command -v "$pagelet" >/dev/null ;;
version) "$pagelet" version ;;
install) command -v "$pagelet" >/dev/null ;;
prepare) [ $# = 5 ] && echo "$3" ;;
serve)
  [ $# = 7 ] || usage
  case $4 in
  auto | int*) precision=(--quantization "$4") ;;
  *) precision=(--quantization none --dtype "$4") ;;
  esac
  exec "$pagelet" serve "$3" --served-model-name model --host 127.0.0.1 --port "$5" \
    "${precision[@]}" --max-num-seqs "$6" --max-model-len "$7"
  ;;
*) usage ;;
esac
