// Archives of images: their content, and what remains without the layers that a host has. Errors of
// `sortie image push` before it contacts a host.
#include <doctest/doctest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <nlohmann/json.hpp>

#include "launcher/copy/image_archive.h"
#include "launcher/copy/image_push.h"
#include "launcher/copy/image_report.h"
#include "tests/launcher/command_line.h"

namespace sortie::launcher {
namespace {

using test::has;
using test::shell;
using test::sortie;

constexpr const char* kConfig =
    R"({"rootfs":{"type":"layers","diff_ids":["sha256:01","sha256:02","sha256:03"]}})";

/// An image with three layers, as Docker saves it.
struct SavedImage {
  explicit SavedImage(const std::string& layers = R"("l1/layer.tar","l2/layer.tar","l3/layer.tar")",
                      const std::string& options = "") {
    for (const char* layer : {"l1", "l2", "l3"}) {
      std::filesystem::create_directories(dir / "image" / layer);
      test::write_text(dir / "image" / layer / "layer.tar",
                       std::string(70000, layer[1]));  // not a multiple of the block size
    }
    test::write_text(dir / "image/config.json", kConfig);
    test::write_text(dir / "image/manifest.json",
                     R"([{"Config":"config.json","RepoTags":["t:1"],"Layers":[)" + layers + "]}]");
    pack(options);
  }
  void pack(const std::string& options) {
    REQUIRE(shell("tar -C '" + dir.str("image") + "' " + options + " -cf '" + dir.str("image.tar") +
                  "' .")
                .code == 0);
  }
  test::ScopedTempDir dir;
};

std::string listed(const std::string& tar) {
  return shell("tar -tf '" + tar + "' | sort").output;
}

Result<> write_without(const ImageArchive& archive, std::size_t layers, const std::string& path) {
  boost::asio::io_context io;
  Result<> result = fail(ErrorCode::internal, "not run");
  boost::asio::co_spawn(io, archive.write_without(layers, path),
                        [&](std::exception_ptr, Result<> outcome) { result = outcome; });
  io.run();
  return result;
}

TEST_CASE("an archive knows its image's id and layers, in every form of tar") {
  for (const char* options : {"--format=gnu", "--format=ustar", "--format=pax"}) {
    CAPTURE(options);
    const SavedImage image(R"("l1/layer.tar","l2/layer.tar","l3/layer.tar")", options);
    const auto archive = ImageArchive::open(image.dir.str("image.tar"));
    REQUIRE_MESSAGE(archive, (archive ? "" : archive.error().message));
    CHECK(archive->diff_ids() == std::vector<std::string>{"sha256:01", "sha256:02", "sha256:03"});
    CHECK("sha256:" + shell("sha256sum < '" + image.dir.str("image/config.json") + "'")
                          .output.substr(0, 64) ==
          archive->image_id());
  }
}

TEST_CASE("without layers that a host has, the rest is there byte for byte") {
  const SavedImage image;
  const auto archive = ImageArchive::open(image.dir.str("image.tar"));
  REQUIRE(archive);
  const std::string part = image.dir.str("part.tar");
  REQUIRE(write_without(*archive, 2, part));
  const std::string names = listed(part);
  CHECK(has(names, "./l3/layer.tar\n"));
  CHECK(has(names, "./manifest.json\n"));
  CHECK(has(names, "./config.json\n"));
  CHECK(!has(names, "./l1/layer.tar\n"));
  CHECK(!has(names, "./l2/layer.tar\n"));
  CHECK(std::filesystem::file_size(part) < archive->bytes() - 130000);
  CHECK(shell("tar -xOf '" + part + "' ./l3/layer.tar | cmp - '" +
              image.dir.str("image/l3/layer.tar") + "'")
            .code == 0);
  REQUIRE(write_without(*archive, 0, part));
  CHECK(listed(part) == listed(image.dir.str("image.tar")));
}

TEST_CASE("a layer that others link to stays, long names too") {
  SavedImage image;
  const std::string longer(120, 'n');
  std::filesystem::remove(image.dir / "image/l3/layer.tar");
  std::filesystem::create_symlink("../l1/layer.tar", image.dir / "image/l3/layer.tar");
  std::filesystem::create_directories(image.dir / "image" / longer);
  std::filesystem::rename(image.dir / "image/l2/layer.tar",
                          image.dir / "image" / longer / "layer.tar");
  test::write_text(image.dir / "image/manifest.json",
                   R"([{"Config":"config.json","Layers":["l1/layer.tar",")" + longer +
                       R"(/layer.tar","l3/layer.tar"]}])");
  for (const char* options : {"--format=gnu", "--format=pax"}) {
    image.pack(options);
    const auto archive = ImageArchive::open(image.dir.str("image.tar"));
    REQUIRE_MESSAGE(archive, (archive ? "" : archive.error().message));
    const std::string part = image.dir.str("part.tar");
    REQUIRE(write_without(*archive, 2, part));
    CHECK(has(listed(part), "./l1/layer.tar\n"));  // the third layer is a link to it
    CHECK(!has(listed(part), longer + "/layer.tar\n"));
  }
}

TEST_CASE("what is no saved image is refused") {
  test::ScopedTempDir dir;
  test::write_text(dir / "none.tar", std::string(5000, 'x'));
  CHECK(!ImageArchive::open(dir.str("none.tar")));
  test::write_text(dir / "empty.tar", "");
  CHECK(!ImageArchive::open(dir.str("empty.tar")));
  CHECK(!ImageArchive::open(dir.str("missing.tar")));
  const SavedImage two(R"("l1/layer.tar")");
  CHECK(ImageArchive::open(two.dir.str("image.tar")).error().message.find("other layers") !=
        std::string::npos);
  const SavedImage cut;
  std::filesystem::resize_file(cut.dir / "image.tar", 60000);
  CHECK(!ImageArchive::open(cut.dir.str("image.tar")));
}

TEST_CASE("each host has a folder of its own for the archive, also in a home that hosts share") {
  CHECK(image_folder("gpu01.site") == ".cache/sortie/images/gpu01.site");
  CHECK(image_folder("gpu02.site") != image_folder("gpu01.site"));
  CHECK(image_folder("../x") == ".cache/sortie/images/_._x");
  CHECK(image_folder("fe80::1%eth0") == ".cache/sortie/images/fe80__1_eth0");
}

TEST_CASE("image push shows the copying and reading of the archive, then its way to the hosts") {
  const auto shown = [](std::vector<ArchiveProgress> archives, std::size_t loading = 0) {
    const Progress now = image_progress(archives, 3, loading);
    return fmt::format("{}: {}/{}", now.what, now.done, now.total);
  };
  CHECK(shown({}) == "image to 3 hosts: 0/0");
  CHECK(shown({{.cut = 10, .to_cut = 30}, {}}) == "copying the layers that hosts lack: 10/30");
  const ArchiveProgress reading{
      .cut = 30, .to_cut = 30, .reading = {.listed = 1, .hashed = 7, .to_read = 30}};
  CHECK(shown({reading}) == "reading the image: 7/30");
  ArchiveProgress sent = reading;
  sent.reading.hashed = 30;
  sent.is_sent = true;
  sent.done = 4;
  sent.wanted = 60;
  CHECK(shown({reading, sent}) == "image to 3 hosts: 4/60");
  CHECK(shown({sent}, 1) == "loading on 1 host: 4/60");
}

TEST_CASE("reading an archive reports its bytes") {
  const SavedImage image;
  const auto archive = ImageArchive::open(image.dir.str("image.tar"));
  REQUIRE(archive);
  std::vector<std::uint64_t> done;
  std::uint64_t all = 0;
  boost::asio::io_context io;
  std::function<void(std::uint64_t, std::uint64_t)> on_bytes = [&](std::uint64_t now,
                                                                   std::uint64_t of) {
    done.push_back(now);
    all = of;
  };
  Result<> result = fail(ErrorCode::internal, "not run");
  boost::asio::co_spawn(io,
                        archive->write_without(1, image.dir.str("part.tar"), std::move(on_bytes)),
                        [&](std::exception_ptr, Result<> outcome) { result = outcome; });
  io.run();
  REQUIRE(result);
  REQUIRE(done.size() > 2);
  CHECK(done.front() < done.back());
  CHECK(done.back() == all);
  // What follows is the end mark of a tar file.
  CHECK(std::filesystem::file_size(image.dir / "part.tar") == all + 1024);
}

TEST_CASE("image push says what is wrong before it touches a host") {
  const auto bad = sortie({"image", "push", "Bad Name", "--hosts", "h1"});
  CHECK(bad.code == 2);
  CHECK(has(bad.output, "\"Bad Name\" is no name of an image"));
  const auto nowhere = sortie({"image", "push", "trainer:1"});
  CHECK(nowhere.code == 2);
  CHECK(has(nowhere.output, "which hosts? `sortie image push --hosts"));
  CHECK(sortie({"image", "push", "t:1", "--hosts", "h", "--engine", "rkt"}).code == 2);
  // No engine on this machine.
  const auto none = shell("PATH=/nowhere '" + std::string(SORTIE_BINARY) +
                          "' image push trainer:1 --hosts localhost");
  CHECK(none.code != 0);
  CHECK(has(none.output, "docker: is not on this machine, so it has no image to push"));
}

TEST_CASE("image push of an image that is not here says where it was searched, and what to do") {
  const test::ScopedTempDir dir;
  const std::string docker = dir.str("docker");
  test::write_text(docker, "#!/bin/sh\necho 'Error: No such image: trainer:1' >&2; exit 1\n");
  std::filesystem::permissions(docker, std::filesystem::perms::owner_all);
  const auto missing = shell("PATH='" + dir.path().string() + "':\"$PATH\" '" + SORTIE_BINARY +
                             "' image push trainer:1 --hosts localhost");
  CHECK(missing.code != 0);
  CHECK(has(missing.output,
            "image trainer:1: docker can not save it: Error: No such image: trainer:1; build or "
            "pull it on this machine, or name the engine that has it with --from"));
}

TEST_CASE("image push that a signal ends while it saves has that signal's exit code") {
  const test::ScopedTempDir dir;
  const std::string began = dir.str("began"), docker = dir.str("docker");
  test::write_text(docker, "#!/bin/sh\n: > '" + began + "'\nexec sleep 60\n");
  std::filesystem::permissions(docker, std::filesystem::perms::owner_all);
  struct Row {
    const char* signal;
    int code;
  };
  for (const Row& row : {Row{"TERM", 143}, Row{"HUP", 129}}) {
    CAPTURE(row.signal);
    const auto ended = shell("export PATH='" + dir.path().string() + "':\"$PATH\"; rm -f '" +
                             began + "'; '" + SORTIE_BINARY +
                             "' image push trainer:1 --hosts localhost & pid=$!; "
                             "until [ -e '" +
                             began + "' ] || ! kill -0 $pid; do sleep 0.05; done; kill -" +
                             row.signal + " $pid; wait $pid");
    CHECK(ended.code == row.code);
    CHECK(has(ended.output, "interrupted"));
  }
}

}  // namespace
}  // namespace sortie::launcher
