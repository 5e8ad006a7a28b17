// A real Docker engine for tests: a dockerd of its own with everything below one folder, started
// once for the test program, ended and removed with it. DOCKER_HOST names it in the environment.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace sortie::test {

class DockerEngine {
 public:
  /// The one of this program; started by the first call. Throws where there is no Docker.
  static DockerEngine& get();

  /// Image "sortie-test:1": busybox, rank-helper, a user's home, WORKDIR /home/image, ENV
  /// FROM_IMAGE="a 'b'" and PATH with /opt/tools in front.
  static constexpr const char* kImage = "sortie-test:1";
  /// The same with ENTRYPOINT ["/bin/rank-helper"].
  static constexpr const char* kEntryImage = "sortie-test:entry";

  const std::string& socket() const { return socket_; }
  /// Output of `docker ARGS...`, both streams; the last newline is cut off.
  std::string run(const std::vector<std::string>& args) const;
  /// Names of all containers that carry Sortie's label.
  std::string containers() const;
  /// The same, once there are none or after ten seconds.
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

/// Output of a program, both streams, and its exit code.
struct Ran {
  std::string output;
  int code = -1;
};
Ran run_program(const std::vector<std::string>& argv);

}  // namespace sortie::test
