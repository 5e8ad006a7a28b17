// Sha256 against the published vectors, MappedFile against the file.
#include <doctest/doctest.h>

#include <string>

#include "tests/support/temp_dir.h"
#include "trainer/storage/mapped_file.h"
#include "trainer/storage/sha256.h"

namespace sortie::trainer {

TEST_CASE("SHA-256 of the published vectors") {
  CHECK(sha256_hex(std::string_view("")) ==
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256_hex(std::string_view("abc")) ==
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 hash;
  for (int i = 0; i < 1000; ++i) hash.update(std::string(1000, 'a'));
  CHECK(hash.finish_hex() == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  hash.update("abc");  // finish has reset it
  CHECK(hash.finish_hex() == sha256_hex(std::string_view("abc")));
}

TEST_CASE("a mapped file shows the bytes of the file") {
  test::ScopedTempDir dir;
  const std::string content(10'000, 'q');
  test::write_text(dir.path() / "f", content);
  auto mapped = MappedFile::open(dir.path() / "f");
  REQUIRE(mapped.has_value());
  const MappedFile moved = std::move(*mapped);
  CHECK(std::string_view(reinterpret_cast<const char*>(moved.data()), moved.size()) == content);
  test::write_text(dir.path() / "empty", "");
  CHECK(MappedFile::open(dir.path() / "empty")->size() == 0);
  CHECK(MappedFile::open(dir.path() / "absent").error().message.find("absent") !=
        std::string::npos);
  CHECK_FALSE(MappedFile::open(dir.path()).has_value());
}

}  // namespace sortie::trainer
