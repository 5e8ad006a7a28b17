// Direct children of the calling process: listing and killing them. With PR_SET_CHILD_SUBREAPER
// every descendant becomes a direct child once its own parent is dead, so doing this again and
// again until wait says ECHILD ends a whole tree, whatever its members did to hide. Linux,
// single-threaded callers.
#pragma once

#include <sys/types.h>

#include <initializer_list>
#include <span>
#include <string>
#include <vector>

namespace sortie::runner {

/// Pids of our direct children, zombies included. May miss some while they come and go: only wait's
/// ECHILD proves that there are none.
std::vector<pid_t> direct_children();
/// The same by a search through all of /proc, for kernels without CONFIG_PROC_CHILDREN.
std::vector<pid_t> direct_children_by_search();

/// KILLs each of `children` (unreaped direct children of ours) and its process group: the kernel
/// signals a group as one, so a member can not escape by forking meanwhile.
void kill_children(std::span<const pid_t> children);

/// Whether any process, also a zombie, is in the group.
bool group_exists(pid_t group);

/// One letter of /proc/PID/stat ('D' is uninterruptible sleep), '?' when gone.
char process_state(pid_t pid);

/// Closes every descriptor from 3 up except `keep`.
void close_descriptors_except(std::initializer_list<int> keep);

/// Sets FD_CLOEXEC on every descriptor from 3 up.
void cloexec_all_descriptors();
/// The same one by one, for Linux before 5.11.
void cloexec_all_descriptors_by_search();

}  // namespace sortie::runner
