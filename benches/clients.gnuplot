# Draws calls of `bash -c true` in a second against the number of clients: a line for each column of `data`.
set terminal svg size 760,440 font 'sans-serif,13' background 'white'
set output picture
set datafile separator tab
set title '`bash -c true` in a second'
set xlabel 'clients at once'
set ylabel 'calls in a second'
set logscale x 2
set xtics (1, 2, 4, 8, 16, 32, 64)
set xrange [0.9:72]
set logscale y
set grid
set key outside right top
columns = system(sprintf("head -n1 '%s' | tr '\t' '\n' | wc -l", data)) + 0
plot for [column = 2:columns] data using 1:column with linespoints title columnheader(column)
