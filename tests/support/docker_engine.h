// A real Docker engine for tests: a separate dockerd with all its files in one folder. It is
// started once per test program, and ended and removed with it. DOCKER_HOST in the environment
// names it.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace sortie::test {

class DockerEngine {
 public:
  /// The engine of this program; started by the first call. Throws if there is no Docker.
  static DockerEngine& get();

  /// Image "sortie-test:1": busybox, rank-helper, a user's home, WORKDIR /home/image, ENV
  /// FROM_IMAGE="a 'b'", and PATH with /opt/tools first.
  static constexpr const char* kImage = "sortie-test:1";
  /// The same programs, with ENTRYPOINT ["/bin/rank-helper"].
  static constexpr const char* kEntryImage = "sortie-test:entry";

  const std::string& socket() const { return socket_; }
  /// Output of `docker ARGS...`, both streams, without the last newline.
  std::string run(const std::vector<std::string>& args) const;
  /// Names and states of all containers with Sortie's label.
  std::string containers() const;
  /// Same, but waits until there are none, at most 30 seconds.
  std::string containers_left() const;
  std::string image_id(const std::string& image) const;

  void stop(int signal);
  void start();

  ~DockerEngine();
  DockerEngine(const DockerEngine&) = delete;
  DockerEngine& operator=(const DockerEngine&) = delete;

 private:
  DockerEngine();
  void make_images() const;

  std::string folder_, socket_;
  pid_t pid_ = -1;
};

/// Output of a program, both streams, and its exit code (128 + signal).
struct Ran {
  std::string output;
  int code = -1;
};
Ran run_program(const std::vector<std::string>& argv);

}  // namespace sortie::test
