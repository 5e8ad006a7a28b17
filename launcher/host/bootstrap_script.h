// The host's side of start_runner() where the runner is not at its usual place: three constants,
// nothing is ever put into them.
//
// The remote command is as short as can be, because the user's login shell (sh, bash, zsh, csh,
// fish) reads it: it lets /bin/sh take the script from stdin's first line. The second line is "HASH
// SIZE MACHINE [serve]"; then the host answers, on a line of its own,
//   SORTIE HAVE   the runner is there and says so itself: the rest of the stream is its own
//   SORTIE NEED   send the line of kInstallScript; SEND or FAIL follows
//   SORTIE SEND   send SIZE bytes; HAVE or FAIL follows
//   SORTIE FAIL why
// POSIX sh with local tools only: dash, bash, busybox. A shell reads its script byte by byte, and
// each program that it starts costs more than all of that: on a host that has the runner the first
// script is all that is read, and it starts none.
#pragma once

namespace sortie::launcher {

inline constexpr const char* kBootstrapCommand = "exec /bin/sh -c 'IFS= read -r s && eval \"$s\"'";

// Where most hosts have the runner: head, SHA-256, tail, XXH3 (the same content, for a check that
// takes a tenth of the time on every start). The same checks as good() below. Between
// single quotes, in a line that csh reads too: hence neither "'" nor "!".
inline constexpr const char* kDirectHead = "d=$HOME/.cache/sortie; f=$d/runner-";
inline constexpr const char* kDirectTail =
    "; [ -L \"$f\" ] && exit 1; [ -O \"$d\" ] && [ -O \"$f\" ] && [ -f \"$f\" ] && [ -x \"$f\" ] "
    "&& [ -s \"$f\" ] && exec \"$f\" --stdio --announce --xxh3 ";
// After kDirectTail: a runner for one conversation, or one that stays.
inline constexpr const char* kDirectOnce = "; exit 1";
inline constexpr const char* kDirectServe = " --serve; exit 1";

// One line: each piece ends in its own separator.
inline constexpr const char* kBootstrapScript =
    "fail() { echo; echo \"SORTIE FAIL $1\"; exit 1; }; "
    "read -r hash size machine mode || exit 1; "
    "case $hash$size in *[!0-9a-f]*|'') fail 'the request is garbled';; esac; "
    // A file of ours: the hash was checked before it got this name, only its owner can have changed
    // it since, and the runner compares its content with its name before it announces itself.
    "good() { [ -f \"$f\" ] && [ ! -L \"$f\" ] && [ -O \"$f\" ] && [ -x \"$f\" ] && [ -s \"$f\" ]; "
    "}; "
    "case $mode in serve) mode=--serve;; '') ;; *) fail 'the request is garbled';; esac; "
    "start() { exec \"$f\" --stdio --announce $mode; }; "
    "own=${XDG_CACHE_HOME:-$HOME/.cache}/sortie; "
    "f=$own/runner-$hash; if good; then start; fi; "
    "echo; echo 'SORTIE NEED'; IFS= read -r s && eval \"$s\"";

// The second line for hosts without it; goes on with the variables and functions of the first.
inline constexpr const char* kInstallScript =
    // Where the home folder can not be used, private folders in public places: ours, and no links.
    // Private for what is made here; the runner has the user's umask, as where it is there already.
    "user=$(id -u); mask=$(umask); umask 077; "
    "for d in /tmp /var/tmp /dev/shm; do d=$d/sortie-$user; f=$d/runner-$hash; "
    "if [ ! -L \"$d\" ] && [ -O \"$d\" ] && good; then umask \"$mask\"; start; fi; done; "
    "case $machine in any) ;; *) is=$(uname -m); [ \"$is\" = \"$machine\" ] || "
    "fail \"this host is $is, the runner is built for $machine\";; esac; "
    "why=; t=; "
    "for d in \"$own\" \"/tmp/sortie-$user\" \"/var/tmp/sortie-$user\" \"/dev/shm/sortie-$user\"; "
    "do "
    "if [ \"$d\" != \"$own\" ] && [ -L \"$d\" ]; then why=\"$why $d is a link;\"; "
    "elif mkdir -p \"$d\" 2>/dev/null && [ -O \"$d\" ] && chmod 700 \"$d\" 2>/dev/null && "
    "t=$(mktemp \"$d/tmp.XXXXXX\" 2>/dev/null); then chmod 700 \"$t\"; "
    // access(2) knows of noexec mounts.
    "if [ -x \"$t\" ]; then break; fi; rm -f \"$t\"; why=\"$why $d is mounted noexec;\"; "
    "else why=\"$why $d can not be made or written;\"; fi; t=; done; "
    "[ -n \"$t\" ] || fail \"no folder to keep the runner in:$why\"; "
    // PIPE too: when the launcher has gone, saying so must not end the script before it cleans up.
    "trap 'rm -f \"$t\"' 0; trap 'exit 1' 1 2 13 15; "
    "echo 'SORTIE SEND'; "
    "head -c \"$size\" > \"$t\"; got=$(wc -c < \"$t\"); "
    "[ \"$got\" -eq \"$size\" ] || fail \"$got of $size bytes of the runner arrived in $d; is it "
    "full?\"; "
    "if command -v sha256sum > /dev/null 2>&1; then sum=$(sha256sum < \"$t\"); "
    "[ \"${sum%% *}\" = \"$hash\" ] || fail \"the runner arrived damaged in $d\"; fi; "
    // On disk before it has its name: after a power cut there is the whole file or none.
    "sync \"$t\" 2>/dev/null || sync; "
    // Jobs that install at the same time, hosts with one home folder: each sees a whole file, and a
    // good one that somebody runs already is not replaced.
    "f=$d/runner-$hash; good || ln \"$t\" \"$f\" 2>/dev/null || good || mv -f \"$t\" \"$f\" || "
    "fail \"can not rename in $d\"; rm -f \"$t\"; "
    "trap - 0 1 2 13 15; umask \"$mask\"; "
    // Other builds go when nobody has used them for a week. A runner that works says so every hour
    // by its file's time of access: another host may execute the file over the network.
    "ls -tu \"$d\"/runner-* | tail -n +4 | while read -r old; do "
    "[ -n \"$(find \"$old\" -prune -atime +7 2>/dev/null)\" ] && rm -f \"$old\"; done; "
    "start";

}  // namespace sortie::launcher
