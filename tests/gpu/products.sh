#!/bin/sh
# glslc for the modules that a matrix product of plain numbers and common quantisations loads. The others become a word
# that no driver takes for a module. Matrix cores are said to be unknown: Mali has none, and half of all modules use them.
for word; do
	case $before in
	-o) module=$word ;;
	-MF) dependencies=$word ;;
	esac
	case $word in
	*/coopmat*.comp)
		case $word in
		*/coopmat.comp) echo "extension not supported: GL_KHR_cooperative_matrix" ;;
		*/coopmat2.comp) echo "extension not supported: GL_NV_cooperative_matrix2" ;;
		*) echo "extension not supported: GL_NV_cooperative_matrix_decode_vector" ;;
		esac >&2
		exit 1
		;;
	*.comp) source=${word##*/} ;;
	esac
	before=$word
done
case $source in
mul_mm.comp)
	case "$*" in
	*DOT2_F16* | *DATA_A_IQ* | *FP4* | *BF16*) ;;
	*) exec glslc "$@" ;;
	esac
	;;
mul_mmq.comp | mul_mat_split_k_reduce.comp | quantize_q8_1.comp | count_experts.comp | copy.comp | contig_copy.comp | \
	integer_dot.comp)
	exec glslc "$@"
	;;
esac
echo none >"$module"
if [ -n "$dependencies" ]; then
	echo "$module:" >"$dependencies"
fi
