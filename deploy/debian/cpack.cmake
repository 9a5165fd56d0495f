# CPack's configuration of the Debian package. deploy/debian/package.sh calls it with TERRACE_FOLDER, the tree to pack, and TERRACE_VERSION,
# which is that of CMakeLists.txt.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME terrace)
set(CPACK_PACKAGE_VERSION $ENV{TERRACE_VERSION})
set(CPACK_PACKAGE_VENDOR "Terrace")
set(CPACK_PACKAGE_CONTACT "Terrace maintainers <terrace@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "training of large language models on clusters short of memory")
set(CPACK_PACKAGE_DESCRIPTION "Terrace compiles a training job into programs with every buffer
at a fixed offset, proves that they fit and cannot deadlock, and
runs them on CPUs and GPUs.
.
This package has the programs with the libraries that they need,
and units for systemd.")
set(CPACK_INSTALLED_DIRECTORIES "$ENV{TERRACE_FOLDER};.")
set(CPACK_CMAKE_GENERATOR "")
set(CPACK_PACKAGING_INSTALL_PREFIX /)
set(CPACK_SET_DESTDIR ON)
set(CPACK_PACKAGE_FILE_NAME terrace-${CPACK_PACKAGE_VERSION}-linux-x86_64)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE gzip)  # most of it are NVIDIA libraries, with which xz takes minutes
set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE amd64)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
# Everything else is in the package. init-system-helpers and passwd are essential or come with them; sysusers makes the user.
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= 2.36), passwd")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "openssl, python3-jinja2, systemd")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
foreach(script conffiles postinst prerm postrm)
  list(APPEND CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA "${CMAKE_CURRENT_LIST_DIR}/${script}")
endforeach()
