// SPDX-License-Identifier: MIT

// Peers: golang.org/x/time/rate and github.com/juju/ratelimit; the argument says which. Driven as serve.h says.
package main

import (
	"bufio"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/juju/ratelimit"
	"golang.org/x/time/rate"
)

const burst = 1000000000000

func xTime() func(int) uint64 {
	limiter := rate.NewLimiter(1000000, burst)
	return func(ops int) (allowed uint64) {
		for i := 0; i < ops; i++ {
			if limiter.Allow() {
				allowed++
			}
		}
		return
	}
}

func juju() func(int) uint64 {
	bucket := ratelimit.NewBucketWithQuantum(time.Microsecond, burst, 1)
	return func(ops int) (allowed uint64) {
		for i := 0; i < ops; i++ {
			allowed += uint64(bucket.TakeAvailable(1))
		}
		return
	}
}

func main() {
	name, work := "Go x/time/rate", xTime
	if len(os.Args) > 1 && os.Args[1] == "juju" {
		name, work = "Go juju/ratelimit", juju
	}
	take := work()
	take(100000)
	fmt.Println("ready", name)
	input := bufio.NewReader(os.Stdin)
	for {
		var threads, ops int
		if n, _ := fmt.Fscan(input, &threads, &ops); n != 2 || threads < 1 {
			return
		}
		allowed := make([]uint64, threads)
		var group sync.WaitGroup
		for i := 1; i < threads; i++ {
			group.Add(1)
			go func(i int) {
				allowed[i] = take(ops)
				group.Done()
			}(i)
		}
		sum := take(ops)
		group.Wait()
		for _, n := range allowed {
			sum += n
		}
		fmt.Println(sum)
	}
}
