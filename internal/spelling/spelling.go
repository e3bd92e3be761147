// Package spelling tells how alike two names are, for errors that say which one was perhaps meant.
//
// It owns that measure alone. It must not decide what is alike enough: that is for who
// knows the names.
package spelling

// Distance is how many letters must be changed, added or left out to make b of a (Levenshtein).
func Distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
