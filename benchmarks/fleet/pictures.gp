# SPDX-License-Identifier: MIT
# The fleet's pictures, from the .dat files in `folder`, each as SVG and PNG. Set before: folder, have_intervals, and
# lent, what hybrid may lend.

# One look a strategy, in all pictures: those in memory are solid, those that ask Redis each time are dashed.
names = "local static-split push-pull hybrid fixed-window-naive fixed-window-lua bucket-racy bucket-lua-hash ". \
    "bucket-lua-app-clock bucket-lua-app-clock-skewed sliding-window-counter gcra-lua strict"
set linetype 1 lc rgb "#999999" lw 2
set linetype 2 lc rgb "#8c564b" lw 2
set linetype 3 lc rgb "#ff7f0e" lw 2.5
set linetype 4 lc rgb "#0b7a2a" lw 3.5
set linetype 5 lc rgb "#e377c2" lw 2 dt (8,3)
set linetype 6 lc rgb "#bc5090" lw 2 dt (8,3)
set linetype 7 lc rgb "#d62728" lw 2.5 dt (8,3)
set linetype 8 lc rgb "#17a2b8" lw 2 dt (8,3)
set linetype 9 lc rgb "#1b6ca8" lw 2 dt (3,3)
set linetype 10 lc rgb "#5b8c5a" lw 2 dt (3,3)
set linetype 11 lc rgb "#bcbd22" lw 2 dt (8,3)
set linetype 12 lc rgb "#7f63b8" lw 2 dt (8,3)
set linetype 13 lc rgb "#000000" lw 2.5 dt (8,3)
set linetype 14 lc rgb "#000000" lw 3 dt (1,2)

set border 3 lc rgb "#666666"
set tics nomirror out textcolor rgb "#333333"
set grid lc rgb "#dddddd" lt 1 lw 0.5 dt 1
set key noenhanced Left reverse

has(list, name) = strstrt(" ".list." ", " ".name." ") > 0
first_line(file) = system("head -n 1 '".folder."/".file.".dat'")

# The place of a name, which is its linetype.
place(name) = (sum [i=1:words(names)] (word(names, i) eq name ? i : 0))

# Of the names in the list, those that the file has.
found(list, file) = keep(list, first_line(file), 1)
keep(list, head, i) = i > words(list) ? "" : (has(head, word(list, i)) ? word(list, i)." " : "").keep(list, head, i + 1)

shown = "local static-split push-pull hybrid fixed-window-lua bucket-racy gcra-lua strict"

do for [kind in "svg png"] {
    if (kind eq "svg") {
        set terminal svg size 1000,470 font "sans-serif,13" background rgb "white"
    } else {
        set terminal pngcairo size 1500,705 font "sans-serif,15"
    }

    set output folder."/fleet-admitted.".kind
    set multiplot layout 1,2
    set format y "%.0f"
    set ylabel "requests admitted so far"
    set xlabel "seconds"
    set key outside below horizontal maxcols 3 samplen 2.5 width 1
    set yrange [0:*]
    set title "A flash crowd: 20 x the limit on a cold key"
    set xrange [0:0.5]
    data = folder."/fleet-flash.dat"
    plot for [name in found(shown, "fleet-flash")] data using "s":name with lines lt place(name) title name, \
        data using "s":"allowed" with lines lt 14 title "a perfect bucket"
    set title "Redis dies for 3 s: 2 x the limit"
    set xrange [0:7.25]
    set object 1 rectangle from 0.75, graph 0 to 3.75, graph 1 fc rgb "#f2dede" fs solid noborder behind
    data = folder."/fleet-outage.dat"
    plot for [name in found(shown, "fleet-outage")] data using "s":name with lines lt place(name) title name, \
        data using "s":"allowed" with lines lt 14 title "a perfect bucket"
    unset object 1
    unset multiplot

    set output folder."/fleet-latency.".kind
    set title "How long a decision takes, in the steady workloads"
    set logscale xy
    set xlabel "share of decisions that are faster"
    unset ylabel
    set xtics ("50 %%" 2, "90 %%" 10, "99 %%" 100, "99.9 %%" 1000, "99.99 %%" 10000)
    set ytics ("10 ns" 0.01, "100 ns" 0.1, "1 us" 1, "10 us" 10, "100 us" 100, "1 ms" 1e3, "10 ms" 1e4, "100 ms" 1e5, \
        "1 s" 1e6)
    set xrange [1.25:10000]
    set yrange [*:*]
    set key outside right center vertical maxrows 13 maxcols 1
    data = folder."/fleet-latency.dat"
    plot for [name in found(names, "fleet-latency")] data using "one-in":name with lines lt place(name) title name

    if (have_intervals) {
        set output folder."/fleet-interval.".kind
        set title "A flash crowd on a cold key, by how often processes meet in Redis"
        set xlabel "interval, ms"
        set ylabel "tokens over the limit; the burst is 1000"
        set xtics (25, 50, 100, 200, 400)
        set ytics (1, 10, 100, 1000, 10000)
        set xrange [22:450]
        set yrange [1:20000]
        set key outside below horizontal maxcols 3 maxrows 1
        data = folder."/fleet-interval.dat"
        plot data using "ms":(column("push-pull") < 1 ? 1 : column("push-pull")) with linespoints lt 3 pt 7 \
                title "push-pull", \
            data using "ms":(column("hybrid") < 1 ? 1 : column("hybrid")) with linespoints lt 4 pt 7 title "hybrid", \
            lent with lines lt 14 title "what hybrid may lend: max_overshoot"
    }
    unset logscale
    set xtics autofreq
    set ytics autofreq
    set output
}
