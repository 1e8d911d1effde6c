# Writes OUTPUT, a source with the commit of the repository SOURCE. Runs at each build, and writes only
# a change. COMMIT: the commit where there is no repository, such as in an image's build.
if(NOT COMMIT)
  execute_process(COMMAND git describe --always --dirty --abbrev=12 --exclude=* WORKING_DIRECTORY ${SOURCE}
                  OUTPUT_VARIABLE COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT COMMIT)
  set(COMMIT unknown)
endif()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT "#include \"server/base/commit.h\"

namespace tessera {

std::string_view commit() {
  return \"@COMMIT@\";
}

}  // namespace tessera
")
