# shellcheck shell=bash
# Functions of the checks in this folder, which source it: a bare system, and what a user types there.
#
# A check defines `inside`, which runs commands in the system. What `typed` runs is printed, and appended to the file
# TRANSCRIPT if that is set (packaging/transcripts).
first_loss_limit=60  # seconds from the end of an installation to the first loss

# bare_root SUITE PACKAGE...: makes $root, a minimal Debian or Ubuntu with these packages. Removed when the check ends.
bare_root() {
  local suite=$1 packages=() mirror=()
  shift
  (($# == 0)) || packages=(--include="$(IFS=,; echo "$*")")
  case $suite in
    jammy | noble) mirror=(--keyring=packaging/ubuntu-archive.asc --components=main,universe) ;;  # not Debian's key
  esac
  root=$(mktemp -d)
  trap remove_root EXIT
  mmdebstrap --quiet --variant=minbase "${packages[@]}" "${mirror[@]}" "$suite" "$root" 2> /dev/null
  mount -t proc proc "$root/proc"
  mount -t sysfs sysfs "$root/sys"
  mkdir -p "$root/dev/shm"
  mount -t tmpfs tmpfs "$root/dev/shm"
  cp -f /etc/resolv.conf "$root/etc/"
  system=$(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' "$root/etc/os-release")
}
remove_root() {
  umount "$root/proc" "$root/sys" "$root/dev/shm" 2> /dev/null || true
  rm -rf --one-file-system "$root"
}

# record: prints its input, and appends it to TRANSCRIPT.
record() { tee ${TRANSCRIPT:+-a "$TRANSCRIPT"}; }

seconds_since() { awk -v from="$1" -v to="$EPOCHREALTIME" 'BEGIN { printf "%d", to - from + 0.5 }'; }

# typed COMMAND: runs it inside. Prints it, its seconds, and its output without the middle of what is long. $last_line
# is the last line.
typed() {
  local began=$EPOCHREALTIME output line status=0
  output=$(mktemp)
  while IFS= read -r line; do
    printf '%s\n' "$line"
    if [[ $line == "step 1/"* ]]; then
      first_loss=$(seconds_since "$installed_at")
      echo "[the first loss, $first_loss s after the installation]"
    fi
  done < <(inside "$1" 2>&1) > "$output"
  wait $! || status=$?
  {
    echo "\$ $1  # $(seconds_since "$began") s"
    awk '{ line[NR] = $0 }
         END { for (i = 1; i <= NR; ++i)
                 if (NR <= 22 || i <= 14 || i > NR - 7) print line[i]
                 else if (i == 15) printf "[... %d lines ...]\n", NR - 21 }' "$output"
  } | record
  last_line=$(tail -n 1 "$output")
  rm "$output"
  return "$status"
}

# installed: an installation ends now.
installed() { installed_at=$EPOCHREALTIME; }

# have_smollm2: scripts/fetch-inputs has fetched the model. give_smollm2 FOLDER: copies it, and conversations.
have_smollm2() {
  [[ -d inputs/smollm2 ]] || { echo 'no SmolLM2 here: scripts/fetch-inputs --what smollm2' >&2; return 1; }
}
give_smollm2() { cp -rL inputs/smollm2 recipes/chandlery.jsonl "$1"; }

# tune_smollm2 HAWSER: fine-tunes the model on two ranks with this command, and checks the time of the first loss.
tune_smollm2() {
  first_loss=
  typed "$1 recipe init --model smollm2 --data chandlery.jsonl --ranks 2 --set train.steps=12 \\
  --set train.evaluate_every=6 --output chats.yaml"
  typed "$1 fit chats.yaml"
  [[ -n $first_loss ]] || { echo 'no first loss' >&2; return 1; }
  ((first_loss <= first_loss_limit)) || { echo "more than $first_loss_limit s to the first loss" >&2; return 1; }
}

# transcript TITLE: begins one; end_transcript ends it.
transcript() { printf '\n## %s\n\n```\n' "$1" | record; }
end_transcript() { echo '```' | record; }
