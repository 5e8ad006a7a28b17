// The host's side of start_runner() if the runner is not in its usual place: three constants;
// nothing is ever inserted into them.
//
// The remote command is as short as possible, because the user's login shell (sh, bash, zsh, csh,
// fish) reads it: it makes /bin/sh read the script from the first line of stdin. The second line is
// "HASH SIZE MACHINE once|serve [anew]". With `anew` a runner that is there is not started but
// replaced: it ended before it could check its content, as one does whose file was damaged. The
// host then answers, on a separate line:
//   SORTIE HAVE   printed by the runner itself; the rest of the stream belongs to it
//   SORTIE NEED   send the line kInstallScript; SEND or FAIL follows
//   SORTIE SEND   send SIZE bytes; HAVE or FAIL follows
//   SORTIE FAIL why
// The scripts are POSIX sh and use local tools only: dash, bash and busybox run them. A shell reads
// its script byte by byte, and each program that it starts costs more than all of that. A host that
// has the runner therefore reads the first script only, which starts no program.
#pragma once

namespace sortie::launcher {

inline constexpr const char* kBootstrapCommand = "exec /bin/sh -c 'IFS= read -r s && eval \"$s\"'";

// The command for the usual place of the runner: head, SHA-256, tail, XXH3 (of the same content:
// checking that on every start takes a tenth of the time of SHA-256). It makes the same checks as
// good() below. The command stands between single quotes, in a line that csh reads too: it must
// contain neither "'" nor "!".
inline constexpr const char* kDirectHead = "d=$HOME/.cache/sortie; f=$d/runner-";
inline constexpr const char* kDirectTail =
    "; [ -L \"$f\" ] && exit 1; [ -O \"$d\" ] && [ -O \"$f\" ] && [ -f \"$f\" ] && [ -x \"$f\" ] "
    "&& [ -s \"$f\" ] && exec \"$f\" --stdio --announce --xxh3 ";
// After kDirectTail and the hash: a runner for one conversation, or one that stays.
inline constexpr const char* kDirectOnce = "; exit 1";
inline constexpr const char* kDirectServe = " --serve; exit 1";

// One line: each literal ends with its own separator.
inline constexpr const char* kBootstrapScript =
    "fail() { echo; echo \"SORTIE FAIL $1\"; exit 1; }; "
    "read -r hash size machine mode anew || exit 1; "
    "case $hash$size in *[!0-9a-f]*|'') fail 'the request is garbled';; esac; "
    // good(): the file is the user's own. Its hash was checked before it got this name, only its
    // owner can have changed it since, and the runner compares its content with its name before it
    // announces itself.
    "good() { [ -f \"$f\" ] && [ ! -L \"$f\" ] && [ -O \"$f\" ] && [ -x \"$f\" ] && [ -s \"$f\" ]; "
    "}; "
    "case $mode,$anew in serve,|serve,anew) mode=--serve;; once,|once,anew) mode=;; "
    "*) fail 'the request is garbled';; esac; "
    "start() { exec \"$f\" --stdio --announce $mode; }; "
    "own=${XDG_CACHE_HOME:-$HOME/.cache}/sortie; "
    "startable() { [ -z \"$anew\" ] && good; }; "
    "f=$own/runner-$hash; if startable; then start; fi; "
    "echo; echo 'SORTIE NEED'; IFS= read -r s && eval \"$s\"";

// The script for hosts without the runner. It uses the variables and functions of kBootstrapScript.
inline constexpr const char* kInstallScript =
    // If the home folder is unusable: private folders in public places, which must be the user's
    // own and no symbolic links. Files made here are private; the runner itself gets the user's
    // umask, as if it had been installed before.
    "user=$(id -u); mask=$(umask); umask 077; "
    "for d in /tmp /var/tmp /dev/shm; do d=$d/sortie-$user; f=$d/runner-$hash; "
    "if [ ! -L \"$d\" ] && [ -O \"$d\" ] && startable; then umask \"$mask\"; start; fi; done; "
    "case $machine in any) ;; *) is=$(uname -m); [ \"$is\" = \"$machine\" ] || "
    "fail \"this host is $is, the runner is built for $machine\";; esac; "
    // A folder with the runner's name would take the runner in. It is only removed if it is empty.
    "clear() { [ ! -d \"$1\" ] || { [ -L \"$1\" ] && rm -f \"$1\"; } || rmdir \"$1\" 2>/dev/null; "
    "}; "
    "why=; t=; "
    "for d in \"$own\" \"/tmp/sortie-$user\" \"/var/tmp/sortie-$user\" \"/dev/shm/sortie-$user\"; "
    "do "
    "if [ \"$d\" != \"$own\" ] && [ -L \"$d\" ]; then why=\"$why $d is a link;\"; "
    "elif mkdir -p \"$d\" 2>/dev/null && [ -O \"$d\" ] && chmod 700 \"$d\" 2>/dev/null && "
    "t=$(mktemp \"$d/tmp.XXXXXX\" 2>/dev/null); then chmod 700 \"$t\"; "
    "if ! clear \"$d/runner-$hash\"; then why=\"$why $d/runner-$hash is a folder, remove it;\"; "
    // access(2) detects noexec mounts.
    "elif [ -x \"$t\" ]; then break; else why=\"$why $d is mounted noexec;\"; fi; rm -f \"$t\"; "
    "else why=\"$why $d can not be made or written;\"; fi; t=; done; "
    "[ -n \"$t\" ] || fail \"no folder to keep the runner in:$why\"; "
    // Also for SIGPIPE: if the launcher has gone, an error message must not end the script before
    // its cleanup.
    "trap 'rm -f \"$t\"' 0; trap 'exit 1' 1 2 13 15; "
    "echo 'SORTIE SEND'; "
    "head -c \"$size\" > \"$t\"; got=$(wc -c < \"$t\"); "
    "[ \"$got\" -eq \"$size\" ] || fail \"$got of $size bytes of the runner arrived in $d; is it "
    "full?\"; "
    "if command -v sha256sum > /dev/null 2>&1; then sum=$(sha256sum < \"$t\"); "
    "[ \"${sum%% *}\" = \"$hash\" ] || fail \"the runner arrived damaged in $d\"; fi; "
    // Synced to disk before it gets its name: after a power failure the whole file exists or none.
    "sync \"$t\" 2>/dev/null || sync; "
    // Jobs may install at the same time, and hosts may share one home folder: each sees a whole
    // file, and a good file that another job already runs is not replaced.
    "f=$d/runner-$hash; startable || { [ -z \"$anew\" ] && ln \"$t\" \"$f\" 2>/dev/null; } || "
    "startable || mv -f \"$t\" \"$f\" || fail \"can not rename in $d\"; rm -f \"$t\"; "
    "trap - 0 1 2 13 15; umask \"$mask\"; "
    // Removes other builds that were not used for a week, except the three most recently used
    // files. A running runner updates the access time of its file every hour, because another host
    // may execute the file over the network.
    "ls -dtu \"$d\"/runner-* | tail -n +4 | while read -r old; do "
    "[ -n \"$(find \"$old\" -prune -atime +7 2>/dev/null)\" ] && rm -f \"$old\"; done; "
    "start";

}  // namespace sortie::launcher
