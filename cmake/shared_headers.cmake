# cmake -D OUT=HEADER -D FILES=LIST -P shared_headers.cmake: writes a header with the hash of the files that LIST names, one
# per line, relative to the root of the project. HEADER keeps its modification time if the hash is unchanged; HEADER.checked
# always gets a new one.
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
file(STRINGS "${FILES}" names)
foreach(name IN LISTS names)
  file(SHA256 "${root}/${name}" hash)
  string(APPEND text "${name} ${hash}\n")
endforeach()
string(SHA256 hash "${text}")
string(SUBSTRING "${hash}" 0 16 hash)
file(CONFIGURE OUTPUT "${OUT}" CONTENT "#define SORTIE_SHARED_HEADERS \"${hash}\"\n")
file(TOUCH "${OUT}.checked")
