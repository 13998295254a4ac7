#!/bin/sh
# In place of glslc: the module is a line that says what would be compiled and how, without the folders.
for word; do
	case $before in
	-o) module=$word ;;
	-MF) : >"$word" ;;
	*)
		case $word in
		-o | -MF) ;;
		*.comp) recipe="$recipe ${word##*/}" ;;
		*) recipe="$recipe $word" ;;
		esac
		;;
	esac
	before=$word
done
echo "$recipe" >"$module"
