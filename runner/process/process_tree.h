// Lists and kills direct children of the calling process. With PR_SET_CHILD_SUBREAPER every
// descendant becomes a direct child once its own parent is dead, so repeating this until wait
// returns ECHILD ends a whole tree, however its members try to hide. Linux; single-threaded
// callers.
#pragma once

#include <sys/types.h>

#include <initializer_list>
#include <span>
#include <string>
#include <vector>

namespace sortie::runner {

/// Pids of our direct children, zombies included. May miss some that start or end meanwhile: only
/// ECHILD from wait proves that there are none.
std::vector<pid_t> direct_children();
/// Same by a search of all of /proc, for kernels without CONFIG_PROC_CHILDREN.
std::vector<pid_t> direct_children_by_search();

/// Sends KILL to each of `children` (our unreaped direct children) and to its process group. The
/// kernel signals a group atomically, so no member can escape by forking meanwhile.
void kill_children(std::span<const pid_t> children);

/// State letter of /proc/PID/stat ('D' is uninterruptible sleep), '?' if there is no such process.
char process_state(pid_t pid);

/// Whether the process has begun to exit: true from before the kernel closes its descriptors until
/// it is reaped. False while any of its threads runs on, and if there is no such process.
bool is_ending(pid_t pid);

/// Whether any of its descendants is ending, or is a zombie. Looks at no more than 256 of them.
/// False on kernels without CONFIG_PROC_CHILDREN.
bool has_ending_descendant(pid_t pid);

/// Name in /proc/PID/comm, '?' if there is no such process.
std::string process_name(pid_t pid);

/// "process 7 (name)", with " of root" or " of user id N" if it is another user's.
std::string process_text(pid_t pid);

/// Closes every descriptor from 3 up except `keep`.
void close_descriptors_except(std::initializer_list<int> keep);

/// Sets FD_CLOEXEC on every descriptor from 3 up.
void cloexec_all_descriptors();
/// Same, one by one, for Linux before 5.11.
void cloexec_all_descriptors_by_search();

}  // namespace sortie::runner
