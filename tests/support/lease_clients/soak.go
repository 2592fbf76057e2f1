// Lock and release in many tasks, and write a history; soak.py explains the arguments
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	zklock "github.com/django-zklock/django-zklock/clients/go"
	"google.golang.org/grpc"
)

type fields map[string]any

const look = 100 * time.Millisecond

var (
	arguments = os.Args[1:]
	name      = arguments[2]
	ops       atomic.Int64
	output    sync.Mutex
)

func number(index int) int {
	value, _ := strconv.Atoi(arguments[index])
	return value
}

// now returns seconds on the monotonic clock of the machine.
func now() float64 {
	var moment syscall.Timespec
	const monotonic = 1
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, monotonic, uintptr(unsafe.Pointer(&moment)), 0)
	return float64(moment.Nano()) / 1e9
}

func note(kind string, about fields, lease *zklock.Lease, more fields) float64 {
	moment := now()
	event := fields{"t": moment, "p": name, "e": kind}
	if lease != nil {
		event["token"], event["until"] = lease.Token, moment+lease.Remaining().Seconds()
	}
	for _, some := range []fields{about, more} {
		for key, value := range some {
			event[key] = value
		}
	}
	line, _ := json.Marshal(event)
	output.Lock()
	defer output.Unlock()
	fmt.Println(string(line))
	return moment
}

func lock(client *zklock.Client, task int) {
	terms := strings.Split(arguments[6], ",")
	term, _ := strconv.Atoi(terms[task%len(terms)])
	wait, _ := strconv.Atoi(arguments[7]) // 0 for Infinity
	key := fmt.Sprintf("k%d", (number(3)+task)%number(5))
	about := fields{"o": fmt.Sprintf("%s/%d", name, task), "op": ops.Add(1), "key": key, "term": float64(term) / 1000}
	var granted, requested atomic.Bool
	options := zklock.Options{
		Term: time.Duration(term) * time.Millisecond, Wait: time.Duration(wait) * time.Millisecond,
		OnRequest: func(string) { requested.Store(true) },
	}
	note("invoke", about, nil, fields{"timeout": nil})
	err := client.WithLock(context.Background(), key, options, func(ctx context.Context, lease *zklock.Lease) error {
		granted.Store(true)
		moment := note("granted", about, lease, nil)
		stop := moment + rand.Float64()*float64(number(8))/1000
		for moment < stop && lease.Remaining() > 0 && !requested.Load() {
			moment = note("valid", about, lease, nil)
			time.Sleep(look)
		}
		if lease.Remaining() == 0 {
			note("lost", about, nil, nil)
		} else {
			note("release", about, nil, nil)
		}
		return nil
	})
	if err != nil && !granted.Load() {
		note("refused", about, nil, fields{"why": err.Error()})
	}
	if err != nil {
		time.Sleep(look)
	}
}

func main() {
	addresses := strings.Split(arguments[0], ",")
	seconds, _ := strconv.ParseFloat(arguments[9], 64)
	stop := now() + seconds
	var tasks sync.WaitGroup
	for task := 0; task < number(4); task++ {
		tasks.Add(1)
		first := task % len(addresses)
		rotated := append(append([]string{}, addresses[first:]...), addresses[:first]...)
		go func(task int) {
			defer tasks.Done()
			client := zklock.New(rotated, grpc.WithInsecure())
			defer client.Close()
			client.Token = arguments[1]
			for now() < stop {
				lock(client, task)
			}
		}(task)
	}
	tasks.Wait()
}
